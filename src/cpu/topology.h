// How many threads a process may use here.
#pragma once

#include <cstdint>

namespace flashmla {

// Most threads that a call may ask for.
inline constexpr int32_t kMaxThreads = 1024;

// Processors of the affinity mask, or the cgroup's CPU quota (rounded up) where that is less. Read once.
int32_t available_processors();

// Online processors of the machine, whatever this process may use of them. Read once.
int32_t machine_processors();

}  // namespace flashmla
