// Launching kernels: shared-memory limits, programmatic dependent launch, and errors of this launch alone.
#pragma once

#include <cstddef>

#include "flashmla/status.h"

namespace flashmla::cuda {

struct LaunchShape {
  int blocks = 1;
  int threads = 1;
  int smem_bytes = 0;
};

// Launches `kernel` on the current device. It may start before the kernel ahead of it ends, if both were compiled for
// griddepcontrol (sm_90): such a kernel waits before it touches memory that others write.
Status launch(const char* name, const void* kernel, const LaunchShape& shape, void** arguments, void* stream);

// With FLASHMLA_SYNC=1: waits for the stream and reports what failed on it as `operation`'s error.
Status synchronize_if_asked(const char* operation, void* stream);

}  // namespace flashmla::cuda
