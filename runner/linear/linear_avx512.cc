#include "runner/linear/linear_avx512.h"

namespace flashmla::runner {

const LinearKernel& linear_avx512() {
  static constexpr LinearKernel kKernel = linear_f32<Avx512F32>("avx512");
  return kKernel;
}

}  // namespace flashmla::runner
