// Every environment variable that the library reads.
#pragma once

#include <cstdint>
#include <string_view>

namespace flashmla {

std::string_view env_backend();  // FLASHMLA_BACKEND: back end used where the call names none; empty when unset
std::string_view env_isa();      // FLASHMLA_ISA: instruction set of "cpu" where the call names none; empty when unset
int32_t env_num_threads();  // FLASHMLA_NUM_THREADS: threads of "cpu" where the call names none; 0 when unset or bad
bool env_sync();            // FLASHMLA_SYNC=1: "cuda" waits for each operation and names the one that failed

}  // namespace flashmla
