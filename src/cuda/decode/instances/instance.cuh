// One kernel a source file: they compile side by side.
#pragma once

#include "cuda/decode/combine.cuh"
#include "cuda/decode/instances/instances.h"
#include "cuda/decode/kernel_sm80.cuh"

#define FLASHMLA_SPLIT_INSTANCE(function, Element, config)                             \
  const void* flashmla::cuda::function(LineKind /*kind*/) {                            \
    constexpr DecodeConfig C = config;                                                 \
    return reinterpret_cast<const void*>(&decode_portable<Element, C.rows, C.widths>); \
  }

#define FLASHMLA_COMBINE_INSTANCE(function, Element, config)                                \
  const void* flashmla::cuda::function(LineKind /*kind*/) {                                 \
    constexpr DecodeConfig C = config;                                                      \
    return reinterpret_cast<const void*>(                                                   \
        &combine_partials<Element, C.rows, C.widths, PartialOrder::kRows, LineKind::kAny>); \
  }

// Hopper kernels have an instance for every kind of line.
#define FLASHMLA_HOPPER_INSTANCE(split, split_kernel, combine, combine_kernel) \
  const void* flashmla::cuda::split(LineKind kind) {                           \
    if (kind == LineKind::kOne) return split_kernel<LineKind::kOne>();         \
    if (kind == LineKind::kPlain) return split_kernel<LineKind::kPlain>();     \
    return split_kernel<LineKind::kAny>();                                     \
  }                                                                            \
  const void* flashmla::cuda::combine(LineKind kind) {                         \
    if (kind == LineKind::kOne) return combine_kernel<LineKind::kOne>();       \
    if (kind == LineKind::kPlain) return combine_kernel<LineKind::kPlain>();   \
    return combine_kernel<LineKind::kAny>();                                   \
  }
