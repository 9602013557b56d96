#include "cpu/attention_kernel.h"
#include "cpu/simd_scalar.h"

namespace flashmla {

const AttentionKernel& scalar_kernel(DType dtype) {
  static constexpr AttentionKernel kF32 = F32Kernel<Scalar>::table("cpu_scalar_fp32");
  static constexpr AttentionKernel kF64 = F64ScoreKernel<Scalar>::table("cpu_scalar_fp64_scores");
  return dtype == DType::kBFloat16 ? kF32 : kF64;
}

}  // namespace flashmla
