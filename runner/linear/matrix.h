// A weight matrix and the product with it, the runner's inner loop. Activations are fp32.
#pragma once

#include <cstdint>
#include <memory>

namespace flashmla::runner {

enum class WeightType { kF32, kBF16, kF16, kInt8 };

// Row-major [rows, cols] = [out, in]; y = W x. `data` may lie in a mapped file: no alignment beyond the element's size
// is assumed. `owner` keeps the memory alive.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  WeightType type = WeightType::kF32;
  const void* data = nullptr;
  const float* row_scale = nullptr;  // kInt8: [rows], value = int8 * row_scale[row]
  std::shared_ptr<const void> owner;

  bool given() const { return data != nullptr; }
  // Rows [first, first + count) of the same memory.
  Matrix row_range(int64_t first, int64_t count) const;
};

int64_t element_bytes(WeightType type);
const char* weight_type_name(WeightType type);

// y[t][r] = sum_c W[r][c] x[t][c], for `tokens` rows of x (stride x_stride floats) into y (stride y_stride); y may not
// overlap x. threads 0: as many as this process may use; small products take one. Results do not depend on `threads`.
// A token's result does not depend on the other tokens either, with one exception: on processors with AVX512_BF16, bf16
// weights meet fp32 activations with up to 4 tokens and activations rounded to bf16 with more.
// Error, relative to the sum of |W x|: 1e-6, and 2^-8 in the exception. On those processors int8 weights meet
// activations of 16 bits: half a step of 1/32639 of the largest |x| among 2048 columns.
// A non-finite activation makes that token's results non-finite. Throws std::bad_alloc.
void multiply(const Matrix& w, const float* x, int64_t x_stride, int64_t tokens, float* y, int64_t y_stride,
              int32_t threads);

// One product of a batch that runs in parallel: experts of a layer, each with the tokens routed to it.
struct Product {
  const Matrix* w = nullptr;
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t tokens = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};
void multiply_all(const Product* products, int64_t count, int32_t threads);

// Per-row symmetric int8: scale = max|w| / 127; NaN for a row with a non-finite weight. Reads any type; owns its
// memory.
Matrix quantize_int8(const Matrix& w, int32_t threads);
// Memory for weights: 64-byte aligned, on huge pages where it is large and the system agrees.
std::shared_ptr<void> allocate_weights(int64_t bytes);
// fp32 values of one row.
void read_row(const Matrix& w, int64_t row, float* to);

}  // namespace flashmla::runner
