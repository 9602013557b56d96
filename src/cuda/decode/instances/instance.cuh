// One kernel a source file: they compile side by side.
#pragma once

#include "cuda/decode/combine.cuh"
#include "cuda/decode/hopper/few_rows.cuh"
#include "cuda/decode/instances/instances.h"
#include "cuda/decode/kernel_sm80.cuh"

#define FLASHMLA_SPLIT_INSTANCE(function, Element, config)                             \
  const void* flashmla::cuda::function() {                                             \
    constexpr DecodeConfig C = config;                                                 \
    return reinterpret_cast<const void*>(&decode_portable<Element, C.rows, C.widths>); \
  }

#define FLASHMLA_COMBINE_INSTANCE(function, Element, config)                            \
  const void* flashmla::cuda::function() {                                              \
    constexpr DecodeConfig C = config;                                                  \
    return reinterpret_cast<const void*>(&combine_partials<Element, C.rows, C.widths>); \
  }

#define FLASHMLA_FEW_ROWS_INSTANCE(function, Element, rows)               \
  const void* flashmla::cuda::function() {                                \
    return reinterpret_cast<const void*>(&decode_few_rows<Element, rows>); \
  }
