#include "cpu/attention_kernel.h"
#include "cpu/simd_scalar.h"

namespace flashmla {

const AttentionKernel& scalar_kernel() {
  static constexpr AttentionKernel kKernel = WideKernel<Scalar>::table("cpu_scalar_fp64_scores");
  return kKernel;
}

}  // namespace flashmla
