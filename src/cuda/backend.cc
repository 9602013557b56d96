#include "cuda/backend.h"

#include "core/host_cache.h"
#include "core/text.h"
#include "cuda/cache/cache.h"
#include "cuda/decode/decode.h"
#include "cuda/device.h"
#include "cuda/launch.h"

namespace flashmla {

namespace {

// What a call needs to know before it looks into any tensor.
struct Plan {
  cuda::DeviceInfo device;
  cuda::DecodeChoice choice;
};

Result<Plan> plan(const DecodeShape& shape, const Context& context) {
  Result<cuda::DeviceInfo> device = cuda::device_of(context);
  if (!device.ok()) return device.status();
  Result<cuda::DecodeChoice> choice = cuda::select_decode(shape, device.value(), context.kernel);
  if (!choice.ok()) return choice.status();
  return Plan{std::move(device.value()), std::move(choice.value())};
}

class CudaBackend final : public Backend {
 public:
  std::string_view name() const override { return "cuda"; }
  DeviceType device_type() const override { return DeviceType::kCUDA; }
  int priority() const override { return 100; }

  Result<KernelChoice> choose_decode(const DecodeShape& shape, const DecodeOptions&,
                                     const Context& context) const override {
    const Result<Plan> planned = plan(shape, context);
    if (!planned.ok()) return planned.status();
    return KernelChoice{"cuda", planned.value().choice.entry->name, planned.value().choice.reason};
  }

  Result<int64_t> decode_workspace_bytes(const DecodeShape& shape, const DecodeOptions& options,
                                         const Context& context) const override {
    const Result<Plan> planned = plan(shape, context);
    if (!planned.ok()) return planned.status();
    return cuda::decode_workspace_bytes(shape, options, *planned.value().choice.entry, planned.value().device);
  }

  Status decode(const DecodeParams& params, const DecodeShape& shape, Workspace workspace,
                const Context& context) const override {
    const Result<Plan> planned = plan(shape, context);
    if (!planned.ok()) return planned.status();
    const cuda::DeviceGuard guard(planned.value().device.index);
    FLASHMLA_RETURN_IF_ERROR(cuda::launch_decode(params, shape, *planned.value().choice.entry, planned.value().device,
                                                 workspace, context.stream));
    return cuda::synchronize_if_asked("decode", context.stream);
  }

  Status append_kv(const AppendKvParams& params, const Context& context) const override {
    const AppendShape shape = append_shape(params).value();  // checked by the caller
    if (shape.dtype != DType::kBFloat16 && shape.dtype != DType::kFloat16) {
      return unsupported("kv_cache", concat("dtype ", dtype_name(shape.dtype)),
                         "bf16 and fp16 on back end 'cuda' (fp32: 'cpu', 'reference')");
    }
    const Result<cuda::DeviceInfo> device = cuda::device_of(context);
    if (!device.ok()) return device.status();
    const cuda::DeviceGuard guard(device.value().index);
    FLASHMLA_RETURN_IF_ERROR(cuda::launch_append(params, shape, device.value(), context.stream));
    return cuda::synchronize_if_asked("append_kv", context.stream);
  }

  Status merge_states(const MergeStatesParams& params, const Context& context) const override {
    const MergeShape shape = merge_shape(params).value();  // checked by the caller
    const Result<cuda::DeviceInfo> device = cuda::device_of(context);
    if (!device.ok()) return device.status();
    const cuda::DeviceGuard guard(device.value().index);
    FLASHMLA_RETURN_IF_ERROR(cuda::launch_merge(params, shape, device.value(), context.stream));
    return cuda::synchronize_if_asked("merge_states", context.stream);
  }
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend() { return std::make_unique<CudaBackend>(); }

}  // namespace flashmla
