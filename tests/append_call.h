// One append_kv call for tests, on host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "cases/random.h"
#include "flashmla/flashmla.h"

namespace flashmla::tests {

inline constexpr int64_t kPages = 5;
inline constexpr int64_t kPage = 16;
inline constexpr int64_t kLatent = 64;
inline constexpr int64_t kRope = 16;

// Latent, RoPE part, slots and cache of one call, with gaps, filled with random bytes (any bit pattern must survive).
struct Append {
  std::vector<std::byte> latent, rope, cache;
  std::vector<int64_t> slots;
  AppendKvParams params;
  int64_t bytes = 2;

  Append(DType dtype, std::vector<int64_t> slot_list, int64_t rope_dim = kRope, bool four_dims = false)
      : slots(std::move(slot_list)), bytes(dtype_bytes(dtype)) {
    const auto tokens = static_cast<int64_t>(slots.size());
    const int64_t width = kLatent + rope_dim;
    const int64_t row = width + 8;
    const int64_t page = kPage * row * 2 + 16;
    fill(latent, (tokens + 2) * (kLatent + 3) * bytes, 1);
    fill(rope, (tokens + 5) * (rope_dim + 7) * bytes, 2);
    fill(cache, kPages * page * bytes, 3);
    // More rows than slots, and rows that are not aligned.
    params.latent = {latent.data(), dtype, 2, {tokens + 2, kLatent}, {kLatent + 3, 1}};
    if (rope_dim > 0) params.rope = {rope.data(), dtype, 2, {tokens + 5, rope_dim}, {rope_dim + 7, 1}};
    params.slot_mapping = ConstTensorView::contiguous(slots.data(), DType::kInt64, {tokens});
    params.kv_cache = {cache.data(), dtype, 3, {kPages, kPage, width}, {page, row, 1}};
    if (four_dims) params.kv_cache = {cache.data(), dtype, 4, {kPages, kPage, 1, width}, {page, row, 12345, 1}};
  }

  static void fill(std::vector<std::byte>& memory, int64_t size, uint64_t seed) {
    cases::Random random({seed});
    memory.resize(static_cast<size_t>(size));
    for (std::byte& byte : memory) byte = static_cast<std::byte>(random.next());
  }

  // Writes token `t` where `slots` says, as plain copies.
  void write_expected(std::vector<std::byte>& expected, int64_t t) const {
    const TensorView& view = params.kv_cache;
    std::byte* row = expected.data() + (slots[t] / kPage * view.stride[0] + slots[t] % kPage * view.stride[1]) * bytes;
    std::memcpy(row, latent.data() + t * params.latent.stride[0] * bytes, static_cast<size_t>(kLatent * bytes));
    if (!params.rope.given()) return;
    std::memcpy(row + kLatent * bytes, rope.data() + t * params.rope.stride[0] * bytes,
                static_cast<size_t>(params.rope.shape[1] * bytes));
  }
};

}  // namespace flashmla::tests
