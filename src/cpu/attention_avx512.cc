#include "cpu/attention_kernel.h"
#include "cpu/simd_avx512.h"

namespace flashmla {

const AttentionKernel& avx512_kernel(DType dtype) {
  static constexpr AttentionKernel kF32 = F32Kernel<Avx512>::table("cpu_avx512_fp32");
  static constexpr AttentionKernel kF64 = F64ScoreKernel<Avx512>::table("cpu_avx512_fp64_scores");
  return dtype == DType::kBFloat16 ? kF32 : kF64;
}

}  // namespace flashmla
