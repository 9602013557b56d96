// Which rows can be moved 16 bytes at a time.
#pragma once

#include <cstdint>

#include "flashmla/tensor.h"

namespace flashmla::cuda {

inline constexpr int64_t kVectorBytes = 16;

inline bool aligned_bytes(int64_t bytes) { return bytes % kVectorBytes == 0; }

// Whether the base and every stride that is used, the last dimension's aside, are multiples of 16 bytes.
inline bool aligned_rows(const ConstTensorView& view) {
  bool aligned = reinterpret_cast<uintptr_t>(view.data) % kVectorBytes == 0;
  for (int d = 0; d + 1 < view.ndim; ++d)
    aligned = aligned && (view.shape[d] <= 1 || aligned_bytes(view.stride[d] * dtype_bytes(view.dtype)));
  return aligned;
}

}  // namespace flashmla::cuda
