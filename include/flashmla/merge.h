// Merging partial attention results of the same rows over disjoint keys (Flash-Decoding, context parallelism, prefix
// reuse).
#pragma once

#include "flashmla/context.h"
#include "flashmla/decode.h"
#include "flashmla/export.h"
#include "flashmla/status.h"
#include "flashmla/tensor.h"

namespace flashmla {

// out: [tokens, heads, width] in fp32, fp16 or bf16, all three of one dtype; lse: fp32 [heads, tokens], natural
// logarithm. Free strides (the last dimension of out contiguous). Both +inf and -inf in an lse mean "empty": that side
// adds nothing, whatever its out holds. `out`/`lse` may alias `out_a`/`lse_a` (the same memory and strides).
struct MergeStatesParams {
  ConstTensorView out_a{};
  ConstTensorView lse_a{};
  ConstTensorView out_b{};
  ConstTensorView lse_b{};
  TensorView out{};
  TensorView lse{};                         // may be left out
  EmptyLse empty_lse = EmptyLse::kPlusInf;  // written where both sides are empty, with out = 0
};

FLASHMLA_API Status merge_states(const MergeStatesParams& params, const Context& context = {});

}  // namespace flashmla
