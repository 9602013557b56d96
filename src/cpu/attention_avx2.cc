#include "cpu/attention_kernel.h"
#include "cpu/simd_avx2.h"

namespace flashmla {

const AttentionKernel& avx2_kernel(DType dtype) {
  static constexpr AttentionKernel kF32 = F32Kernel<Avx2>::table("cpu_avx2_fp32");
  static constexpr AttentionKernel kF64 = F64ScoreKernel<Avx2>::table("cpu_avx2_fp64_scores");
  return dtype == DType::kBFloat16 ? kF32 : kF64;
}

}  // namespace flashmla
