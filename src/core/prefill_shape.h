// Checks of a prefill call that need no look into the tensors.
#pragma once

#include "flashmla/prefill.h"

namespace flashmla {

// What the public prefill_shape answers.
Result<PrefillShape> checked_prefill_shape(const PrefillParams& params);

// A shape that the caller filled by hand: every size within the contract's limits.
Status check_prefill_sizes(const PrefillShape& shape);

}  // namespace flashmla
