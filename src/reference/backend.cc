#include "reference/backend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/float16.h"
#include "core/host_attention.h"
#include "core/host_cache.h"
#include "core/text.h"

namespace flashmla {

namespace {

// Element `index` of a run of elements, and its writing counterpart.
template <class T>
double load(const std::byte* base, int64_t index) {
  return to_float(reinterpret_cast<const T*>(base)[index]);
}

template <class T>
void store(std::byte* base, int64_t index, double value) {
  reinterpret_cast<T*>(base)[index] = from_float<T>(static_cast<float>(value));
}

template <class Visit>
void visit_dtype(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kFloat16: visit(Float16{}); break;
    case DType::kBFloat16: visit(BFloat16{}); break;
    default: visit(float{}); break;  // the checks let nothing else through
  }
}

// One (request, query token, head) row. The running maximum is kept so that no memory grows with the length.
template <class T>
class Row {
 public:
  // `scratch`: d_qk + d_v doubles.
  Row(const HostAttention& call, double* scratch)
      : call_(call), query_(scratch), weighted_(scratch + call.first_dim() + call.second_dim()) {}

  void run(int64_t index, const HostRequest& request, int64_t token, int64_t head) {
    const std::byte* first = call_.query_first(index, request, token, head);
    const std::byte* second = call_.query_second(index, request, token, head);
    for (int64_t d = 0; d < call_.first_dim(); ++d) query_[d] = load<T>(first, d);
    for (int64_t d = 0; d < call_.second_dim(); ++d) query_[call_.first_dim() + d] = load<T>(second, d);
    std::fill_n(weighted_, call_.value_dim(), 0.0);
    most_ = -kInf;
    total_ = 0;
    add_keys(index, request, head / call_.group(), call_.visible_keys(request, token));
    if (most_ == -kInf) {
      call_.write_empty(index, request, token, head);
      return;
    }
    std::byte* out = call_.out(index, request, token, head);
    for (int64_t d = 0; d < call_.value_dim(); ++d) store<T>(out, d, weighted_[d] / total_);
    if (float* lse = call_.lse(index, request, token, head)) *lse = static_cast<float>(most_ + std::log(total_));
  }

 private:
  static constexpr double kInf = std::numeric_limits<double>::infinity();

  void add_keys(int64_t index, const HostRequest& request, int64_t head_kv, int64_t count) {
    if (count == 0) return;
    const KeyRows keys = call_.key_rows(index, request, head_kv);
    const KeyRows values = call_.value_rows(request, head_kv);
    for (int64_t k = 0; k < count; ++k) add_key(keys.at(k), values.base == nullptr ? keys.at(k) : values.at(k));
  }

  double score(const std::byte* key) const {
    const int64_t width = call_.first_dim() + call_.second_dim();
    double sums[kDimMultiple] = {};  // widths are multiples of kDimMultiple; independent sums let the compiler use SIMD
    for (int64_t d = 0; d < width; d += kDimMultiple) {
      for (int64_t i = 0; i < kDimMultiple; ++i) sums[i] += query_[d + i] * load<T>(key, d + i);
    }
    double sum = 0;
    for (double part : sums) sum += part;
    return sum * static_cast<double>(call_.softmax_scale());
  }

  void add_key(const std::byte* key, const std::byte* value) {
    const double score = this->score(key);
    if (score == -kInf) return;  // weight 0
    // A score of NaN or +inf makes the row NaN: exp(inf - inf), or NaN itself.
    if (!(score <= most_)) {
      const double keep = std::exp(most_ - score);
      total_ *= keep;
      for (int64_t d = 0; d < call_.value_dim(); ++d) weighted_[d] *= keep;
      most_ = score;
    }
    const double weight = std::exp(score - most_);
    total_ += weight;
    for (int64_t d = 0; d < call_.value_dim(); ++d) weighted_[d] += weight * load<T>(value, d);
  }

  const HostAttention& call_;
  double* query_;
  double* weighted_;
  double most_ = -kInf;
  double total_ = 0;
};

template <class T>
void attend_rows(const HostAttention& call, double* scratch) {
  Row<T> row(call, scratch);
  for (int64_t i = 0; i < call.batch(); ++i) {
    const HostRequest request = call.request(i);
    for (int64_t token = 0; token < request.seq_q; ++token) {
      for (int64_t head = 0; head < call.heads_q(); ++head) row.run(i, request, token, head);
    }
  }
}

Status attend(const Result<HostAttention>& call, Workspace workspace) {
  if (!call.ok()) return call.status();
  visit_dtype(call.value().dtype(), [&](auto element) {
    attend_rows<decltype(element)>(call.value(), static_cast<double*>(workspace.data));
  });
  call.value().write_padding();
  return {};
}

template <class T>
void merge_row(const MergeStatesParams& params, const MergeShape& shape, int64_t t, int64_t h) {
  const auto lse_at = [&](const auto& view) {
    return static_cast<const float*>(view.data) + h * view.stride[0] + t * view.stride[1];
  };
  const auto out_at = [&](const auto& view) {
    return static_cast<const std::byte*>(view.data) +
           (t * view.stride[0] + h * view.stride[1]) * dtype_bytes(shape.dtype);
  };
  const double lse_a = *lse_at(params.lse_a);
  const double lse_b = *lse_at(params.lse_b);
  const bool has_a = !std::isinf(lse_a);
  const bool has_b = !std::isinf(lse_b);
  const double most = has_a && has_b ? std::fmax(lse_a, lse_b) : has_a ? lse_a : lse_b;
  const double weight_a = has_a ? std::exp(lse_a - most) : 0.0;
  const double weight_b = has_b ? std::exp(lse_b - most) : 0.0;
  const double total = weight_a + weight_b;
  auto* out = const_cast<std::byte*>(out_at(params.out));
  for (int64_t d = 0; d < shape.width; ++d) {
    double sum = 0;
    if (has_a) sum += weight_a * load<T>(out_at(params.out_a), d);
    if (has_b) sum += weight_b * load<T>(out_at(params.out_b), d);
    store<T>(out, d, has_a || has_b ? sum / total : 0.0);
  }
  if (!params.lse.given()) return;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float empty = params.empty_lse == EmptyLse::kPlusInf ? kInf : -kInf;
  *const_cast<float*>(lse_at(params.lse)) = has_a || has_b ? static_cast<float>(most + std::log(total)) : empty;
}

class ReferenceBackend final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  DeviceType device_type() const override { return DeviceType::kCPU; }
  int priority() const override { return 0; }

  Result<KernelChoice> choose_decode(const DecodeShape&, const DecodeOptions&, const Context&) const override {
    return KernelChoice{"reference", "reference_scalar", "asked for by name: the double-precision oracle, one thread"};
  }

  Result<int64_t> decode_workspace_bytes(const DecodeShape& shape, const DecodeOptions&,
                                         const Context&) const override {
    return static_cast<int64_t>(sizeof(double)) * (2 * shape.latent_dim + shape.rope_dim);
  }

  Status decode(const DecodeParams& params, const DecodeShape& shape, Workspace workspace,
                const Context&) const override {
    return attend(HostAttention::make(params, shape), workspace);
  }

  Result<KernelChoice> choose_prefill(const PrefillShape&, const Context&) const override {
    return KernelChoice{"reference", "reference_scalar", "asked for by name: the double-precision oracle, one thread"};
  }

  Result<int64_t> prefill_workspace_bytes(const PrefillShape& shape, const Context&) const override {
    return static_cast<int64_t>(sizeof(double)) * (shape.qk_dim + shape.v_dim);
  }

  Status prefill(const PrefillParams& params, const PrefillShape& shape, Workspace workspace,
                 const Context&) const override {
    return attend(HostAttention::make(params, shape), workspace);
  }

  Status append_kv(const AppendKvParams& params, const Context&) const override {
    const AppendShape shape = append_shape(params).value();  // checked by the caller
    FLASHMLA_RETURN_IF_ERROR(check_host_slots(params, shape));
    const auto* slots = static_cast<const int64_t*>(params.slot_mapping.data);
    const int64_t bytes = dtype_bytes(shape.dtype);
    for (int64_t t = 0; t < shape.tokens; ++t) {
      if (slots[t] < 0) continue;
      auto* row =
          static_cast<std::byte*>(params.kv_cache.data) + (slots[t] / shape.page_size * params.kv_cache.stride[0] +
                                                           slots[t] % shape.page_size * params.kv_cache.stride[1]) *
                                                              bytes;
      const auto* latent = static_cast<const std::byte*>(params.latent.data) + t * params.latent.stride[0] * bytes;
      for (int64_t d = 0; d < shape.latent_dim * bytes; ++d) row[d] = latent[d];
      if (shape.rope_dim == 0) continue;
      const auto* rope = static_cast<const std::byte*>(params.rope.data) + t * params.rope.stride[0] * bytes;
      for (int64_t d = 0; d < shape.rope_dim * bytes; ++d) row[shape.latent_dim * bytes + d] = rope[d];
    }
    return {};
  }

  Status merge_states(const MergeStatesParams& params, const Context&) const override {
    const MergeShape shape = merge_shape(params).value();  // checked by the caller
    visit_dtype(shape.dtype, [&](auto element) {
      for (int64_t t = 0; t < shape.tokens; ++t) {
        for (int64_t h = 0; h < shape.heads; ++h) merge_row<decltype(element)>(params, shape, t, h);
      }
    });
    return {};
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace flashmla
