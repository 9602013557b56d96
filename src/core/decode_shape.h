// Checks of a decode call that need no look into the tensors.
#pragma once

#include "flashmla/decode.h"

namespace flashmla {

// What the public decode_shape answers.
Result<DecodeShape> checked_decode_shape(const DecodeParams& params);

// A shape that the caller filled by hand: every size within the contract's limits, and the options.
Status check_decode_sizes(const DecodeShape& shape, const DecodeOptions& options);

}  // namespace flashmla
