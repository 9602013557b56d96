// How many threads a process may use here.
#pragma once

#include <sched.h>

#include <cstdint>

namespace flashmla {

// Most threads that a call may ask for.
inline constexpr int32_t kMaxThreads = 1024;

// The processors that this process may use: those of all its threads together, since an OpenMP runtime may have bound
// the calling one to a single processor. False when the system does not tell.
bool process_affinity(cpu_set_t* processors);

// Processors of that mask, or the cgroup's CPU quota (rounded up) where that is less. Read once.
int32_t available_processors();

// Online processors of the machine, whatever this process may use of them. Read once.
int32_t machine_processors();

}  // namespace flashmla
