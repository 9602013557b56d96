// Rows of activations in the cache's dtype, where the attention runs. Today that is host memory; a device buffer takes
// its place on a GPU.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "flashmla/flashmla.h"
#include "runner/checkpoint/model_config.h"
#include "runner/linear/matrix.h"

namespace flashmla::runner {

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

class DeviceRows {
 public:
  // Uninitialised. dtype: fp32 or bf16.
  DeviceRows(int64_t count, DType dtype);
  // Rounded from fp32.
  DeviceRows(const float* values, int64_t count, DType dtype);

  // A row-major view; with `row_stride` (elements) a two-dimensional slice that begins at `offset`.
  ConstTensorView view(std::initializer_list<int64_t> sizes, int64_t offset = 0, int64_t row_stride = 0) const;
  TensorView mutable_view(std::initializer_list<int64_t> sizes);
  std::vector<float> to_float() const;

 private:
  int64_t count_ = 0;
  DType dtype_ = DType::kFloat32;
  std::shared_ptr<std::byte[]> memory_;
};

// Keys and values of cached tokens [begin, begin + count) of one sequence in MHA form.
struct DecompressedKeys {
  DeviceRows keys;    // [count, heads, nope + rope]
  DeviceRows values;  // [count, heads, v]
};
DecompressedKeys decompress_keys(const ModelConfig& config, const Matrix& kv_b, const TensorView& layer_cache,
                                 const std::vector<int32_t>& pages, int64_t begin, int64_t count, int32_t threads);

}  // namespace flashmla::runner
