#include "runner/checkpoint/fp8_blocks.h"

#include <algorithm>

#include "flashmla/cpu.h"
#include "runner/float_bits.h"

namespace flashmla::runner {

namespace {

void dequantize_row(const uint8_t* from, const float* scales, int64_t cols, uint16_t* to) {
  for (int64_t begin = 0; begin < cols; begin += kFp8Block) {
    const float scale = scales[begin / kFp8Block];
    const int64_t end = std::min(begin + kFp8Block, cols);
    for (int64_t c = begin; c < end; ++c) to[c] = float_to_bf16(e4m3_to_float(from[c]) * scale);
  }
}

}  // namespace

void dequantize_fp8(const Fp8Rows& from, uint16_t* to, int32_t threads) {
  const auto* data = reinterpret_cast<const uint8_t*>(from.data);
  const int64_t scale_cols = fp8_blocks(from.cols);
  run_workers(threads, [&](int32_t worker) {
    const int64_t begin = from.rows * worker / threads;
    const int64_t end = from.rows * (worker + 1) / threads;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = from.first_row + r;
      dequantize_row(data + row * from.cols, from.scales + row / kFp8Block * scale_cols, from.cols, to + r * from.cols);
    }
  });
}

}  // namespace flashmla::runner
