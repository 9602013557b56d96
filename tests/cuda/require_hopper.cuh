// For tests of what only sm_90a has.
#pragma once

#include "cuda/ptx/hopper.cuh"
#include "device_memory.h"

namespace flashmla::tests {

static __global__ void write_whether_sm90a(int* to) { *to = FLASHMLA_SM90A; }

// Whether this program's code for sm_90a is what runs: a GPU of compute capability 9.0 and a build that has such code.
static bool runs_sm90a() {
  const DeviceVector<int> answer(std::vector<int>{0});
  write_whether_sm90a<<<1, 1>>>(answer.data());
  const cudaError_t error = cudaGetLastError();
  if (error == cudaErrorNoKernelImageForDevice) return false;
  check_cuda(error, "launch");
  return answer.download()[0] == 1;
}

#define REQUIRE_HOPPER() \
  REQUIRE_GPU();         \
  if (!tests::runs_sm90a()) GTEST_SKIP() << "needs a GPU of compute capability 9.0, and code for sm_90a in this build"

}  // namespace flashmla::tests
