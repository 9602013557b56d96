#include "cpu/decode_kernel.h"
#include "cpu/simd_scalar.h"

namespace flashmla {

const DecodeKernel& scalar_kernel(DType dtype) {
  static constexpr DecodeKernel kF32 = F32Kernel<Scalar>::table("cpu_decode_scalar_fp32");
  static constexpr DecodeKernel kF64 = F64ScoreKernel<Scalar>::table("cpu_decode_scalar_fp64_scores");
  return dtype == DType::kFloat32 ? kF64 : kF32;
}

}  // namespace flashmla
