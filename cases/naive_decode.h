// The contract's decode on the GPU, written to be read: the oracle for shapes that are too large for the host.
#pragma once

#include "flashmla/flashmla.h"

namespace flashmla::cases {

// fp64 throughout. `out` fp64 [total_q, h_q, d_v] and `lse` fp64 [total_q, h_q] on the device, contiguous; lengths and
// table must be right. bf16 and fp16. Returns after the stream is done.
Status naive_decode(const DecodeParams& params, double* out, double* lse);

}  // namespace flashmla::cases
