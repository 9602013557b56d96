#include "cpu/backend.h"

#include <algorithm>

#include "core/env.h"
#include "core/text.h"
#include "cpu/attention.h"
#include "cpu/cache.h"
#include "cpu/isa.h"
#include "cpu/topology.h"

namespace flashmla {

namespace {

constexpr int64_t kMaxWidth = 1 << 16;  // of a key or value: the kernels count columns in 32 bits

Result<int32_t> choose_threads(const Context& context) {
  if (context.threads < 0 || context.threads > kMaxThreads) {
    return invalid("threads", concat(context.threads),
                   concat("0 (FLASHMLA_NUM_THREADS, else all available) .. ", kMaxThreads));
  }
  if (context.threads > 0) return context.threads;
  const int32_t wanted = env_num_threads();
  return wanted > 0 ? std::min(wanted, kMaxThreads) : available_processors();
}

const AttentionKernel& kernel_of(Isa isa, DType dtype) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx512Bf16:
      if (dtype == DType::kBFloat16) return avx512_bf16_kernel();
      [[fallthrough]];
    case Isa::kAvx512: return avx512_kernel();
    case Isa::kAvx2: return avx2_kernel();
#endif
    default: return scalar_kernel();
  }
}

// What a call needs to know before it looks into any tensor.
struct Plan {
  Isa isa = Isa::kScalar;
  const AttentionKernel* kernel = nullptr;
  AttentionLayout layout{};
};

template <class Shape>
Result<Plan> plan_attention(const Shape& shape, int64_t widest, const Context& context) {
  const Result<Isa> isa = choose_isa(context);
  if (!isa.ok()) return isa.status();
  const Result<int32_t> threads = choose_threads(context);
  if (!threads.ok()) return threads.status();
  if (widest > kMaxWidth) {
    return unsupported("width of a key or value", concat(widest), concat("up to ", kMaxWidth, " on back end 'cpu'"));
  }
  return Plan{isa.value(), &kernel_of(isa.value(), shape.dtype), AttentionLayout::of(shape, threads.value())};
}

Result<Plan> plan(const DecodeShape& shape, const Context& context) {
  return plan_attention(shape, shape.latent_dim + shape.rope_dim, context);
}

Result<Plan> plan(const PrefillShape& shape, const Context& context) {
  return plan_attention(shape, std::max(shape.qk_dim, shape.v_dim), context);
}

template <class Shape>
Result<KernelChoice> choose(const Shape& shape, const Context& context) {
  const Result<Plan> planned = plan(shape, context);
  if (!planned.ok()) return planned.status();
  const Plan& found = planned.value();
  const bool named = !context.isa.empty() || !env_isa().empty();
  return KernelChoice{
      "cpu", found.kernel->name,
      concat("instruction set ", isa_name(found.isa), named ? " was asked for" : " is the best of this processor",
             " and the inputs are ", dtype_name(shape.dtype), "; at most ", found.layout.item.rows,
             " query rows share each read of a key; threads: ", found.layout.threads)};
}

template <class Shape>
Result<int64_t> workspace(const Shape& shape, const Context& context) {
  const Result<Plan> planned = plan(shape, context);
  if (!planned.ok()) return planned.status();
  return planned.value().layout.bytes;
}

template <class Params, class Shape>
Status attend(const Params& params, const Shape& shape, Workspace memory, const Context& context) {
  const Result<Plan> planned = plan(shape, context);
  if (!planned.ok()) return planned.status();
  const Result<HostAttention> call = HostAttention::make(params, shape);
  if (!call.ok()) return call.status();
  cpu_attention(call.value(), *planned.value().kernel, planned.value().layout, static_cast<std::byte*>(memory.data));
  call.value().write_padding();
  return {};
}

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  DeviceType device_type() const override { return DeviceType::kCPU; }
  int priority() const override { return 100; }

  Result<KernelChoice> choose_decode(const DecodeShape& shape, const DecodeOptions&,
                                     const Context& context) const override {
    return choose(shape, context);
  }
  Result<int64_t> decode_workspace_bytes(const DecodeShape& shape, const DecodeOptions&,
                                         const Context& context) const override {
    return workspace(shape, context);
  }
  Status decode(const DecodeParams& params, const DecodeShape& shape, Workspace memory,
                const Context& context) const override {
    return attend(params, shape, memory, context);
  }

  Result<KernelChoice> choose_prefill(const PrefillShape& shape, const Context& context) const override {
    return choose(shape, context);
  }
  Result<int64_t> prefill_workspace_bytes(const PrefillShape& shape, const Context& context) const override {
    return workspace(shape, context);
  }
  Status prefill(const PrefillParams& params, const PrefillShape& shape, Workspace memory,
                 const Context& context) const override {
    return attend(params, shape, memory, context);
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
