// How much memory this machine has.
#pragma once

#include <cstdint>

namespace flashmla::runner {

// Within the limit of the process's control group; INT64_MAX when the system does not say.
int64_t total_memory();
// Of that, what the system could still give to this process.
int64_t available_memory();

}  // namespace flashmla::runner
