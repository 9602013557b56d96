#include "cpu/cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/float16.h"
#include "flashmla/cpu.h"

namespace flashmla {

namespace {

// Less work than this is done by the calling thread: waking the others takes a few microseconds.
constexpr int64_t kBytesPerThread = 256 << 10;

int32_t worthwhile_threads(int64_t bytes, int32_t threads) {
  return static_cast<int32_t>(std::clamp<int64_t>(bytes / kBytesPerThread, 1, threads));
}

// The lse of a side; an empty side (either marker) counts as -inf.
float finite_or_minus_inf(float lse) { return std::isinf(lse) ? -INFINITY : lse; }

template <class T>
void merge_row(const MergeStatesParams& params, const MergeShape& shape, int64_t token, int64_t head) {
  const auto lse_of = [&](const ConstTensorView& view) {
    return static_cast<const float*>(view.data)[head * view.stride[0] + token * view.stride[1]];
  };
  const auto out_of = [&](const ConstTensorView& view) {
    return static_cast<const T*>(view.data) + token * view.stride[0] + head * view.stride[1];
  };
  const float lse_a = finite_or_minus_inf(lse_of(params.lse_a));
  const float lse_b = finite_or_minus_inf(lse_of(params.lse_b));
  const bool has_a = lse_a != -INFINITY;
  const bool has_b = lse_b != -INFINITY;
  const float most = lse_a < lse_b ? lse_b : lse_a;  // NaN when lse_a is; a NaN in lse_b reaches weight_b
  const float exp_a = has_a ? std::exp(lse_a - most) : 0.0f;
  const float exp_b = has_b ? std::exp(lse_b - most) : 0.0f;
  const float total = exp_a + exp_b;
  const float weight_a = exp_a / total;
  const float weight_b = exp_b / total;
  const T* a = out_of(params.out_a);
  const T* b = out_of(params.out_b);
  T* out = const_cast<T*>(out_of(params.out));
  if (has_a && has_b) {
    for (int64_t d = 0; d < shape.width; ++d) {
      out[d] = from_float<T>(weight_a * to_float(a[d]) + weight_b * to_float(b[d]));
    }
  } else if (has_a || has_b) {
    std::memmove(out, has_a ? a : b, static_cast<size_t>(shape.width) * sizeof(T));
  } else {
    std::fill_n(out, shape.width, T{});
  }
  if (!params.lse.given()) return;
  float& lse = static_cast<float*>(params.lse.data)[head * params.lse.stride[0] + token * params.lse.stride[1]];
  if (has_a && has_b) {
    lse = most + std::log(total);
  } else if (has_a || has_b) {
    lse = has_a ? lse_a : lse_b;
  } else {
    lse = params.empty_lse == EmptyLse::kPlusInf ? INFINITY : -INFINITY;
  }
}

template <class T>
void merge_rows(const MergeStatesParams& params, const MergeShape& shape, int32_t threads) {
  run_workers(threads, [&](int32_t worker) {
    const int64_t end = shape.tokens * (worker + 1) / threads;
    for (int64_t token = shape.tokens * worker / threads; token < end; ++token) {
      for (int64_t head = 0; head < shape.heads; ++head) merge_row<T>(params, shape, token, head);
    }
  });
}

}  // namespace

// Slots are dealt to the workers by their number, so that of duplicates the last one wins whole.
void cpu_append_kv(const AppendKvParams& params, const AppendShape& shape, int32_t threads) {
  const int64_t bytes = dtype_bytes(shape.dtype);
  const auto latent_bytes = static_cast<size_t>(shape.latent_dim * bytes);
  const auto rope_bytes = static_cast<size_t>(shape.rope_dim * bytes);
  const auto* slots = static_cast<const int64_t*>(params.slot_mapping.data);
  const auto* latent = static_cast<const std::byte*>(params.latent.data);
  const auto* rope = static_cast<const std::byte*>(params.rope.data);
  auto* cache = static_cast<std::byte*>(params.kv_cache.data);
  const int32_t workers = worthwhile_threads(shape.tokens * static_cast<int64_t>(latent_bytes + rope_bytes), threads);
  run_workers(workers, [&](int32_t worker) {
    for (int64_t t = 0; t < shape.tokens; ++t) {
      const int64_t slot = slots[t];
      if (slot < 0 || slot % workers != worker) continue;
      std::byte* row = cache + (slot / shape.page_size * params.kv_cache.stride[0] +
                                slot % shape.page_size * params.kv_cache.stride[1]) *
                                   bytes;
      std::memcpy(row, latent + t * params.latent.stride[0] * bytes, latent_bytes);
      if (rope_bytes != 0) std::memcpy(row + latent_bytes, rope + t * params.rope.stride[0] * bytes, rope_bytes);
    }
  });
}

void cpu_merge_states(const MergeStatesParams& params, const MergeShape& shape, int32_t threads) {
  const int32_t workers =
      worthwhile_threads(3 * shape.tokens * shape.heads * shape.width * dtype_bytes(shape.dtype), threads);
  switch (shape.dtype) {
    case DType::kFloat16: merge_rows<Float16>(params, shape, workers); break;
    case DType::kBFloat16: merge_rows<BFloat16>(params, shape, workers); break;
    default: merge_rows<float>(params, shape, workers); break;
  }
}

}  // namespace flashmla
