#include "cuda/decode/hopper/few_rows.cuh"
#include "cuda/decode/instances/instance.cuh"

namespace flashmla::cuda {
namespace {

template <LineKind kKind>
const void* split() {
  return reinterpret_cast<const void*>(&decode_few_rows<__nv_bfloat16, 8, kKind>);
}
template <LineKind kKind>
const void* combine() {
  return reinterpret_cast<const void*>(
      &combine_partials<__nv_bfloat16, 8, Widths::kTuned, PartialOrder::kFragments, kKind>);
}

}  // namespace
}  // namespace flashmla::cuda

FLASHMLA_HOPPER_INSTANCE(bf16_hopper_8_split, split, bf16_hopper_8_combine, combine)
