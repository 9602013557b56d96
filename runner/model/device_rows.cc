#include "runner/model/device_rows.h"

#include <algorithm>
#include <cstring>

#include "runner/float_bits.h"

namespace flashmla::runner {

DeviceRows::DeviceRows(int64_t count, DType dtype)
    : count_(count),
      dtype_(dtype),
      memory_(static_cast<std::byte*>(std::aligned_alloc(
                  64, static_cast<size_t>(round_up(std::max<int64_t>(1, count) * dtype_bytes(dtype), 64)))),
              std::free) {
  if (memory_ == nullptr) throw std::bad_alloc();
}

DeviceRows::DeviceRows(const float* values, int64_t count, DType dtype) : DeviceRows(count, dtype) {
  if (dtype == DType::kFloat32) {
    std::memcpy(memory_.get(), values, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* to = reinterpret_cast<uint16_t*>(memory_.get());
  for (int64_t i = 0; i < count; ++i) to[i] = float_to_bf16(values[i]);
}

ConstTensorView DeviceRows::view(std::initializer_list<int64_t> sizes, int64_t offset, int64_t row_stride) const {
  ConstTensorView view = ConstTensorView::contiguous(memory_.get() + offset * dtype_bytes(dtype_), dtype_, sizes);
  if (row_stride != 0) view.stride[0] = row_stride;
  return view;
}

TensorView DeviceRows::mutable_view(std::initializer_list<int64_t> sizes) {
  return TensorView::contiguous(memory_.get(), dtype_, sizes);
}

std::vector<float> DeviceRows::to_float() const {
  std::vector<float> values(static_cast<size_t>(count_));
  if (dtype_ == DType::kFloat32) {
    std::memcpy(values.data(), memory_.get(), values.size() * sizeof(float));
    return values;
  }
  const auto* from = reinterpret_cast<const uint16_t*>(memory_.get());
  for (int64_t i = 0; i < count_; ++i) values[i] = bf16_to_float(from[i]);
  return values;
}

DecompressedKeys decompress_keys(const ModelConfig& config, const Matrix& kv_b, const TensorView& layer_cache,
                                 const std::vector<int32_t>& pages, int64_t begin, int64_t count, int32_t threads) {
  const int64_t latent = config.kv_lora_rank;
  const int64_t rope = config.qk_rope_dim;
  const int64_t nope = config.qk_nope_dim;
  const int64_t page = layer_cache.shape[1];
  std::vector<float> rows(static_cast<size_t>(count * (latent + rope)));
  for (int64_t k = 0; k < count; ++k) {
    const int64_t slot = pages[(begin + k) / page] * page + (begin + k) % page;
    const auto* from =
        static_cast<const std::byte*>(layer_cache.data) + slot * layer_cache.stride[1] * dtype_bytes(layer_cache.dtype);
    float* to = rows.data() + k * (latent + rope);
    if (layer_cache.dtype == DType::kFloat32) {
      std::memcpy(to, from, static_cast<size_t>(latent + rope) * sizeof(float));
    } else {
      for (int64_t d = 0; d < latent + rope; ++d) to[d] = bf16_to_float(reinterpret_cast<const uint16_t*>(from)[d]);
    }
  }
  const int64_t head_rows = nope + config.v_dim;
  std::vector<float> up(static_cast<size_t>(count * kv_b.rows));
  multiply(kv_b, rows.data(), latent + rope, count, up.data(), kv_b.rows, threads);
  std::vector<float> keys(static_cast<size_t>(count * config.heads * (nope + rope)));
  std::vector<float> values(static_cast<size_t>(count * config.heads * config.v_dim));
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t h = 0; h < config.heads; ++h) {
      const float* from = up.data() + k * kv_b.rows + h * head_rows;
      float* key = keys.data() + (k * config.heads + h) * (nope + rope);
      std::copy_n(from, nope, key);
      std::copy_n(rows.data() + k * (latent + rope) + latent, rope, key + nope);
      std::copy_n(from + nope, config.v_dim, values.data() + (k * config.heads + h) * config.v_dim);
    }
  }
  return {DeviceRows(keys.data(), static_cast<int64_t>(keys.size()), layer_cache.dtype),
          DeviceRows(values.data(), static_cast<int64_t>(values.size()), layer_cache.dtype)};
}

}  // namespace flashmla::runner
