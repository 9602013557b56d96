#include "cpu/decode_kernel.h"
#include "cpu/simd_avx2.h"

namespace flashmla {

const DecodeKernel& avx2_kernel(DType dtype) {
  static constexpr DecodeKernel kF32 = F32Kernel<Avx2>::table("cpu_decode_avx2_fp32");
  static constexpr DecodeKernel kF64 = F64ScoreKernel<Avx2>::table("cpu_decode_avx2_fp64_scores");
  return dtype == DType::kFloat32 ? kF64 : kF32;
}

}  // namespace flashmla
