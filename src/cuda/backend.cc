#include "cuda/backend.h"

#include "core/host_cache.h"
#include "core/text.h"
#include "cuda/cache/cache.h"
#include "cuda/check_values.h"
#include "cuda/decode/decode.h"
#include "cuda/decode/tensor_map.h"
#include "cuda/device.h"
#include "cuda/launch.h"

namespace flashmla {

namespace {

// What a call needs to know before it looks into any tensor.
struct Plan {
  const cuda::DeviceInfo* device;
  const cuda::DecodeEntry* entry;
};

cuda::Selection selection_of(const DecodeOptions& options, const Context& context) {
  return {.named = context.kernel, .batch_invariant = options.batch_invariant};
}

Result<Plan> plan(const DecodeShape& shape, const cuda::Selection& selection, const Context& context) {
  const Result<const cuda::DeviceInfo*> device = cuda::device_of(context);
  if (!device.ok()) return device.status();
  const Result<const cuda::DecodeEntry*> entry = cuda::select_decode(shape, *device.value(), selection);
  if (!entry.ok()) return entry.status();
  return Plan{device.value(), entry.value()};
}

class CudaBackend final : public Backend {
 public:
  std::string_view name() const override { return "cuda"; }
  DeviceType device_type() const override { return DeviceType::kCUDA; }
  int priority() const override { return 100; }

  Result<KernelChoice> choose_decode(const DecodeShape& shape, const DecodeOptions& options,
                                     const Context& context) const override {
    const cuda::Selection selection = selection_of(options, context);
    const Result<Plan> planned = plan(shape, selection, context);
    if (!planned.ok()) return planned.status();
    const auto& [device, entry] = planned.value();
    return KernelChoice{"cuda", entry->name, cuda::decode_reason(shape, *device, selection, *entry)};
  }

  Result<int64_t> decode_workspace_bytes(const DecodeShape& shape, const DecodeOptions& options,
                                         const Context& context) const override {
    const Result<Plan> planned = plan(shape, selection_of(options, context), context);
    if (!planned.ok()) return planned.status();
    return cuda::decode_workspace_bytes(shape, options, *planned.value().entry, *planned.value().device);
  }

  Status decode(const DecodeParams& params, const DecodeShape& shape, Workspace workspace,
                const Context& context) const override {
    cuda::Selection selection = selection_of(params.options, context);
    selection.bulk_copies = cuda::takes_strides(params, shape);
    const Result<Plan> planned = plan(shape, selection, context);
    if (!planned.ok()) return planned.status();
    const auto& [device, entry] = planned.value();
    const cuda::DeviceGuard guard(device->index);
    if (params.status.given()) FLASHMLA_RETURN_IF_ERROR(cuda::launch_check(params, shape, *device, context.stream));
    FLASHMLA_RETURN_IF_ERROR(cuda::launch_decode(params, shape, *entry, *device, workspace, context.stream));
    return cuda::synchronize_if_asked("decode", context.stream);
  }

  Status append_kv(const AppendKvParams& params, const Context& context) const override {
    const AppendShape shape = append_shape(params).value();  // checked by the caller
    if (shape.dtype != DType::kBFloat16 && shape.dtype != DType::kFloat16) {
      return unsupported("kv_cache", concat("dtype ", dtype_name(shape.dtype)),
                         "bf16 and fp16 on back end 'cuda' (fp32: 'cpu', 'reference')");
    }
    const Result<const cuda::DeviceInfo*> device = cuda::device_of(context);
    if (!device.ok()) return device.status();
    const cuda::DeviceGuard guard(device.value()->index);
    if (params.status.given())
      FLASHMLA_RETURN_IF_ERROR(cuda::launch_check(params, shape, *device.value(), context.stream));
    FLASHMLA_RETURN_IF_ERROR(cuda::launch_append(params, shape, *device.value(), context.stream));
    return cuda::synchronize_if_asked("append_kv", context.stream);
  }

  Status merge_states(const MergeStatesParams& params, const Context& context) const override {
    const MergeShape shape = merge_shape(params).value();  // checked by the caller
    const Result<const cuda::DeviceInfo*> device = cuda::device_of(context);
    if (!device.ok()) return device.status();
    const cuda::DeviceGuard guard(device.value()->index);
    FLASHMLA_RETURN_IF_ERROR(cuda::launch_merge(params, shape, *device.value(), context.stream));
    return cuda::synchronize_if_asked("merge_states", context.stream);
  }
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend() { return std::make_unique<CudaBackend>(); }

}  // namespace flashmla
