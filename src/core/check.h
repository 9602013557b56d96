// Checks of tensor views that every operation shares. All texts say what was got and what is wanted.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "flashmla/decode.h"
#include "flashmla/status.h"
#include "flashmla/tensor.h"

namespace flashmla {

inline constexpr int64_t kMaxCount = (int64_t{1} << 31) - 1;  // the contract's limit of every size
inline constexpr int64_t kRowAlignment = 16;                  // bytes: base address and outer strides of q and cache
inline constexpr int64_t kDimMultiple = 8;                    // latent and RoPE widths

struct DimWant {
  const char* name;  // the contract's symbol, e.g. "h_q"
  int64_t size;      // wanted size; kAny takes every size from 0 to kMaxCount
};
inline constexpr int64_t kAny = -1;

struct ViewRules {
  bool last_contiguous = false;  // stride of the last dimension is 1
  bool rows_aligned = false;     // base and every stride but the last are multiples of kRowAlignment bytes
  bool written = false;          // no two elements share an address: no stride 0 where the size is above 1
};

// Shape (count, order and sizes of `dims`), limits, strides, alignment, a null pointer with elements.
Status check_view(std::string_view argument, const ConstTensorView& view, std::initializer_list<DimWant> dims,
                  ViewRules rules);
// A tensor that was not given has no dtype: it passes here, and check_view says that there is none.
Status check_dtype(std::string_view argument, const ConstTensorView& view, DType want);
// fp32, fp16 or bf16.
Status check_float_dtype(std::string_view argument, const ConstTensorView& view);

// A latent, RoPE, key or value width: a multiple of kDimMultiple, at least `least`.
Status check_width(std::string_view name, int64_t width, int64_t least);
Status check_heads(int64_t heads_q, int64_t heads_kv);
Status check_softmax_scale(float scale);
Status check_empty_lse(EmptyLse empty_lse);
// The optional `status`: int32 [1].
Status check_status_view(const TensorView& status);
// The format that the call names, or that of the cache's dtype, which must be the format's.
Result<KvFormat> resolve_kv_format(KvFormat named, const ConstTensorView& cache);

}  // namespace flashmla
