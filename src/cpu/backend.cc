#include "cpu/backend.h"

#include <algorithm>

#include "core/env.h"
#include "core/text.h"
#include "cpu/cache.h"
#include "cpu/decode.h"
#include "cpu/isa.h"
#include "cpu/topology.h"

namespace flashmla {

namespace {

constexpr int64_t kMaxWidth = 1 << 16;  // latent and RoPE part together: the kernels count columns in 32 bits

Result<int32_t> choose_threads(const Context& context) {
  if (context.threads < 0 || context.threads > kMaxThreads) {
    return invalid("threads", concat(context.threads),
                   concat("0 (FLASHMLA_NUM_THREADS, else all available) .. ", kMaxThreads));
  }
  if (context.threads > 0) return context.threads;
  const int32_t wanted = env_num_threads();
  return wanted > 0 ? std::min(wanted, kMaxThreads) : available_processors();
}

const DecodeKernel& kernel_of(Isa isa, DType dtype) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx512Bf16:
      if (dtype == DType::kBFloat16) return avx512_bf16_kernel();
      [[fallthrough]];
    case Isa::kAvx512: return avx512_kernel(dtype);
    case Isa::kAvx2: return avx2_kernel(dtype);
#endif
    default: return scalar_kernel(dtype);
  }
}

// What a call needs to know before it looks into any tensor.
struct Plan {
  Isa isa = Isa::kScalar;
  const DecodeKernel* kernel = nullptr;
  DecodeLayout layout{};
};

Result<Plan> plan_decode(const DecodeShape& shape, const Context& context) {
  const Result<Isa> isa = choose_isa(context);
  if (!isa.ok()) return isa.status();
  const Result<int32_t> threads = choose_threads(context);
  if (!threads.ok()) return threads.status();
  if (shape.latent_dim + shape.rope_dim > kMaxWidth) {
    return unsupported("d_qk", concat(shape.latent_dim + shape.rope_dim),
                       concat("up to ", kMaxWidth, " on back end 'cpu'"));
  }
  return Plan{isa.value(), &kernel_of(isa.value(), shape.dtype), DecodeLayout::of(shape, threads.value())};
}

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  DeviceType device_type() const override { return DeviceType::kCPU; }
  int priority() const override { return 100; }

  Result<KernelChoice> choose_decode(const DecodeShape& shape, const DecodeOptions&,
                                     const Context& context) const override {
    const Result<Plan> plan = plan_decode(shape, context);
    if (!plan.ok()) return plan.status();
    const bool named = !context.isa.empty() || !env_isa().empty();
    const char* queries = shape.ragged_q ? "up to " : "";
    return KernelChoice{"cpu", plan.value().kernel->name,
                        concat("instruction set ", isa_name(plan.value().isa),
                               named ? " was asked for" : " is the best of this processor", " and the cache is ",
                               dtype_name(shape.dtype), "; ", queries, plan.value().layout.item.rows,
                               " query rows read each key once; ", plan.value().layout.threads, " threads")};
  }

  Result<int64_t> decode_workspace_bytes(const DecodeShape& shape, const DecodeOptions&,
                                         const Context& context) const override {
    const Result<Plan> plan = plan_decode(shape, context);
    if (!plan.ok()) return plan.status();
    return plan.value().layout.bytes;
  }

  Status decode(const DecodeParams& params, const DecodeShape& shape, Workspace workspace,
                const Context& context) const override {
    const Result<Plan> plan = plan_decode(shape, context);
    if (!plan.ok()) return plan.status();
    const Result<HostDecode> call = HostDecode::make(params, shape);
    if (!call.ok()) return call.status();
    cpu_decode(call.value(), *plan.value().kernel, plan.value().layout, static_cast<std::byte*>(workspace.data));
    if (shape.ragged_q) call.value().write_padding();
    return {};
  }

  Status append_kv(const AppendKvParams& params, const Context& context) const override {
    const Result<int32_t> threads = choose_threads(context);
    if (!threads.ok()) return threads.status();
    const AppendShape shape = append_shape(params).value();  // checked by the caller
    FLASHMLA_RETURN_IF_ERROR(check_host_slots(params, shape));
    cpu_append_kv(params, shape, threads.value());
    return {};
  }

  Status merge_states(const MergeStatesParams& params, const Context& context) const override {
    const Result<int32_t> threads = choose_threads(context);
    if (!threads.ok()) return threads.status();
    cpu_merge_states(params, merge_shape(params).value(), threads.value());  // checked by the caller
    return {};
  }
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace flashmla
