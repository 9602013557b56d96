#include "cpu/attention_kernel.h"
#include "cpu/simd_avx2.h"

namespace flashmla {

const AttentionKernel& avx2_kernel() {
  static constexpr AttentionKernel kKernel = WideKernel<Avx2>::table("cpu_avx2_fp64_scores");
  return kKernel;
}

}  // namespace flashmla
