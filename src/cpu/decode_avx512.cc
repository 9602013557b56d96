#include "cpu/decode_kernel.h"
#include "cpu/simd_avx512.h"

namespace flashmla {

const DecodeKernel& avx512_kernel(DType dtype) {
  static constexpr DecodeKernel kF32 = F32Kernel<Avx512>::table("cpu_decode_avx512_fp32");
  static constexpr DecodeKernel kF64 = F64ScoreKernel<Avx512>::table("cpu_decode_avx512_fp64_scores");
  return dtype == DType::kFloat32 ? kF64 : kF32;
}

}  // namespace flashmla
