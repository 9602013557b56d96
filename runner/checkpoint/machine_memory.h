// How much memory this machine has.
#pragma once

#include <cstdint>
#include <string>

namespace flashmla::runner {

// Within the limit of the process's control group; INT64_MAX when the system does not say.
int64_t total_memory();
// Of that, what the system could still give to this process.
int64_t available_memory();
// "need 15.00 GB, this machine has 8.00 GB to give"
std::string memory_text(int64_t needed, int64_t available);

}  // namespace flashmla::runner
