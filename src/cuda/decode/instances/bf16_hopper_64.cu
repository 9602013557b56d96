#include "cuda/decode/hopper/rows64.cuh"
#include "cuda/decode/instances/instance.cuh"

namespace flashmla::cuda {
namespace {

template <LineKind kKind>
const void* split() {
  return reinterpret_cast<const void*>(&decode_rows64<__nv_bfloat16, kKind>);
}
template <LineKind kKind>
const void* combine() {
  return reinterpret_cast<const void*>(
      &combine_partials<__nv_bfloat16, rows64::kRows, Widths::kTuned, PartialOrder::kFragments, kKind>);
}

}  // namespace
}  // namespace flashmla::cuda

FLASHMLA_HOPPER_INSTANCE(bf16_hopper_64_split, split, bf16_hopper_64_combine, combine)
