// The paged cache as the bulk copies of the Hopper kernels see it.
#pragma once

#include <cuda.h>

#include "cuda/decode/table.h"
#include "flashmla/decode.h"

namespace flashmla::cuda {

// Dimensions [pages][panels][tokens of a page][64 elements]; a box is 2^log2_box(shape) tokens of box_panels(shape,
// entry) panels, each as it lies in shared memory: rows of 128 bytes, swizzled. Made for one call, by value.
// `workspace` is an address that stands in for a cache without pages.
// Strides that it cannot describe have a portable kernel (takes_strides).
Result<CUtensorMap> kv_tensor_map(const DecodeParams& params, const DecodeShape& shape, const DecodeEntry& entry,
                                  Workspace workspace);

// Whether a tensor map can describe the cache's strides: positive and below 2^40 bytes.
bool takes_strides(const DecodeParams& params, const DecodeShape& shape);

}  // namespace flashmla::cuda
