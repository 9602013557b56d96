// One kernel a source file: they compile side by side.
#pragma once

#include "cuda/decode/combine.cuh"
#include "cuda/decode/hopper/few_rows.cuh"
#include "cuda/decode/instances/instances.h"
#include "cuda/decode/kernel_sm80.cuh"

#define FLASHMLA_SPLIT_INSTANCE(function, Element, config)                             \
  const void* flashmla::cuda::function(LineKind /*kind*/) {                                             \
    constexpr DecodeConfig C = config;                                                 \
    return reinterpret_cast<const void*>(&decode_portable<Element, C.rows, C.widths>); \
  }

#define FLASHMLA_COMBINE_INSTANCE(function, Element, config)                            \
  const void* flashmla::cuda::function(LineKind /*kind*/) {                                              \
    constexpr DecodeConfig C = config;                                                  \
    return reinterpret_cast<const void*>(&combine_partials<Element, C.rows, C.widths, PartialOrder::kRows, LineKind::kAny>); \
  }

#define FLASHMLA_FEW_ROWS_INSTANCE(split, combine, Element, rows)                                                    \
  const void* flashmla::cuda::split(LineKind kind) {                                                                \
    if (kind == LineKind::kOne) return reinterpret_cast<const void*>(&decode_few_rows<Element, rows, LineKind::kOne>); \
    if (kind == LineKind::kPlain)                                                                                   \
      return reinterpret_cast<const void*>(&decode_few_rows<Element, rows, LineKind::kPlain>);                      \
    return reinterpret_cast<const void*>(&decode_few_rows<Element, rows, LineKind::kAny>);                          \
  }                                                                                                                 \
  const void* flashmla::cuda::combine(LineKind kind) {                                                              \
    if (kind == LineKind::kOne) return few_rows_combine<Element, rows, LineKind::kOne>();                           \
    if (kind == LineKind::kPlain) return few_rows_combine<Element, rows, LineKind::kPlain>();                       \
    return few_rows_combine<Element, rows, LineKind::kAny>();                                                       \
  }

namespace flashmla::cuda {
template <typename T, int kRows, LineKind kKind>
const void* few_rows_combine() {
  return reinterpret_cast<const void*>(
      &combine_partials<T, kRows, Widths::kTuned, PartialOrder::kFragments, kKind>);
}
}  // namespace flashmla::cuda
