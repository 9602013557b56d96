#include "cpu/attention_kernel.h"
#include "cpu/simd_avx512.h"

namespace flashmla {

const AttentionKernel& avx512_kernel() {
  static constexpr AttentionKernel kKernel = WideKernel<Avx512>::table("cpu_avx512_fp64_scores");
  return kKernel;
}

}  // namespace flashmla
