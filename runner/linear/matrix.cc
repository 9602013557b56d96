#include "runner/linear/matrix.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "flashmla/cpu.h"
#include "runner/float_bits.h"

namespace flashmla::runner {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

void quantize_row(const float* from, int64_t cols, int8_t* to, float& scale) {
  float most = 0;
  bool finite = true;
  for (int64_t c = 0; c < cols; ++c) {
    most = std::max(most, std::fabs(from[c]));
    finite = finite && std::isfinite(from[c]);
  }
  scale = finite ? most / 127.0f : std::numeric_limits<float>::quiet_NaN();
  if (!finite || most == 0) {
    std::memset(to, 0, static_cast<size_t>(cols));
    return;
  }
  for (int64_t c = 0; c < cols; ++c) {  // the quotient in double: 127 / most may overflow fp32
    to[c] = static_cast<int8_t>(std::lrint(static_cast<double>(from[c]) * 127.0 / static_cast<double>(most)));
  }
}

}  // namespace

Matrix Matrix::row_range(int64_t first, int64_t count) const {
  Matrix part = *this;
  part.rows = count;
  part.data = static_cast<const std::byte*>(data) + first * cols * element_bytes(type);
  if (row_scale != nullptr) part.row_scale = row_scale + first;
  return part;
}

int64_t element_bytes(WeightType type) {
  switch (type) {
    case WeightType::kF32: return 4;
    case WeightType::kBF16:
    case WeightType::kF16: return 2;
    case WeightType::kInt8: return 1;
  }
  return 0;
}

const char* weight_type_name(WeightType type) {
  switch (type) {
    case WeightType::kF32: return "fp32";
    case WeightType::kBF16: return "bf16";
    case WeightType::kF16: return "fp16";
    case WeightType::kInt8: return "int8";
  }
  return "unknown";
}

std::shared_ptr<void> allocate_weights(int64_t bytes) {
  const size_t rounded = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + 63) / 64 * 64;
  const bool huge = rounded >= kHugePage;
  void* memory =
      std::aligned_alloc(huge ? kHugePage : 64, huge ? (rounded + kHugePage - 1) / kHugePage * kHugePage : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  if (huge) madvise(memory, rounded, MADV_HUGEPAGE);  // fewer TLB misses; a refusal changes nothing else
  return {memory, &std::free};
}

Matrix quantize_int8(const Matrix& w, int32_t threads) {
  const int64_t scale_offset = (w.rows * w.cols + 63) / 64 * 64;
  const std::shared_ptr<void> memory = allocate_weights(scale_offset + w.rows * static_cast<int64_t>(sizeof(float)));
  auto* values = static_cast<int8_t*>(memory.get());
  auto* scales = reinterpret_cast<float*>(values + scale_offset);
  if (threads <= 0) threads = std::max(cpu_info().threads, 1);
  std::vector<float> rows(static_cast<size_t>(threads * w.cols));
  run_workers(threads, [&](int32_t worker) {
    float* row = rows.data() + worker * w.cols;
    for (int64_t r = w.rows * worker / threads; r < w.rows * (worker + 1) / threads; ++r) {
      read_row(w, r, row);
      quantize_row(row, w.cols, values + r * w.cols, scales[r]);
    }
  });
  return {
      .rows = w.rows, .cols = w.cols, .type = WeightType::kInt8, .data = values, .row_scale = scales, .owner = memory};
}

void read_row(const Matrix& w, int64_t row, float* to) {
  const auto* from = static_cast<const std::byte*>(w.data) + row * w.cols * element_bytes(w.type);
  const auto* half = reinterpret_cast<const uint16_t*>(from);
  switch (w.type) {
    case WeightType::kF32: std::memcpy(to, from, static_cast<size_t>(w.cols) * sizeof(float)); return;
    case WeightType::kBF16:
      for (int64_t c = 0; c < w.cols; ++c) to[c] = bf16_to_float(half[c]);
      return;
    case WeightType::kF16:
      for (int64_t c = 0; c < w.cols; ++c) to[c] = f16_to_float(half[c]);
      return;
    case WeightType::kInt8:
      for (int64_t c = 0; c < w.cols; ++c)
        to[c] = static_cast<float>(reinterpret_cast<const int8_t*>(from)[c]) * w.row_scale[row];
      return;
  }
}

}  // namespace flashmla::runner
