// Writing new tokens into the paged latent cache.
#pragma once

#include "flashmla/context.h"
#include "flashmla/export.h"
#include "flashmla/kv_format.h"
#include "flashmla/status.h"
#include "flashmla/tensor.h"

namespace flashmla {

struct AppendKvParams {
  ConstTensorView latent{};  // [T' >= T, d_v], free row stride, last dimension contiguous, the cache's dtype
  ConstTensorView rope{};    // [T'' >= T, d_rope], as above; left out when the model has no RoPE part
  // int64 [T]: page * page_size + place in the page; negative: skip this token. T governs, the inputs may be longer.
  ConstTensorView slot_mapping{};
  TensorView kv_cache{};  // [pages, page, d_v + d_rope] or [pages, page, 1, d_v + d_rope]
  KvFormat kv_format = KvFormat::kFromDType;
  // Optional int32 [1] on the device, CUDA only: receives a BadValue (status.h), kNone too, in stream order.
  TensorView status{};
};

// Of duplicate slots one wins. Errors: kInvalidArgument, kUnsupported (fp8 formats), kOutOfRange (a slot at or past
// pages * page_size: nothing is written then; a GPU skips the token and tells `status`).
FLASHMLA_API Status append_kv(const AppendKvParams& params, const Context& context = {});

}  // namespace flashmla
