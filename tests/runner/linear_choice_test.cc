// Which kernels of matrix products this machine has.
#include <gtest/gtest.h>

#include "flashmla/cpu.h"
#include "runner/linear/linear_kernel.h"

namespace flashmla::runner {
namespace {

TEST(LinearKernels, OneForEachInstructionSetOfThisMachine) {
  EXPECT_EQ(find_linear_kernel("avx1024"), nullptr);
  for (const std::string& isa : cpu_info().isas) {
    const LinearKernel* kernel = find_linear_kernel(isa);
    ASSERT_NE(kernel, nullptr) << isa;
    EXPECT_EQ(kernel->isa, isa);
  }
}

}  // namespace
}  // namespace flashmla::runner
