// FP8 weights with a scale for every block of 128 x 128 values, as DeepSeek-V3 ships them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashmla::runner {

inline constexpr int64_t kFp8Block = 128;
inline int64_t fp8_blocks(int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }

// value = e4m3 * scale of its block (the checkpoints call the scale "weight_scale_inv"; it is a multiplier all the
// same). Rows [first_row, first_row + rows) of a matrix [*, cols] that starts at `data`; the last block of rows and of
// columns may be ragged.
struct Fp8Rows {
  const std::byte* data = nullptr;
  const float* scales = nullptr;  // [fp8_blocks(all rows), fp8_blocks(cols)]
  int64_t cols = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
};

// Into `to`, bf16 [rows, cols], rounded once; the same result for any number of threads.
void dequantize_fp8(const Fp8Rows& from, uint16_t* to, int32_t threads);

}  // namespace flashmla::runner
