// A small decode call in C structs, with the memory that it points to: 2 requests, 2 heads, fp32, pages of 4 tokens.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "flashmla/c.h"

namespace flashmla::c_api_test {

template <class Struct>
Struct sized() {
  Struct value{};
  value.struct_size = sizeof(Struct);
  return value;
}

inline flashmla_tensor tensor(const void* data, flashmla_dtype dtype, std::vector<int64_t> shape) {
  return flashmla_contiguous(data, dtype, static_cast<int32_t>(shape.size()), shape.data());
}

struct AlignedFree {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<void, AlignedFree>;

inline AlignedMemory aligned_memory(int64_t bytes) {
  const int64_t rounded = (bytes / FLASHMLA_WORKSPACE_ALIGNMENT + 1) * FLASHMLA_WORKSPACE_ALIGNMENT;
  return AlignedMemory{std::aligned_alloc(FLASHMLA_WORKSPACE_ALIGNMENT, static_cast<size_t>(rounded))};
}

struct SmallCall {
  static constexpr int64_t kBatch = 2, kHeads = 2, kLatent = 16, kRope = 8, kWidth = kLatent + kRope, kPage = 4,
                           kPages = 3;

  alignas(64) std::array<float, kBatch * kHeads * kWidth> q{};
  alignas(64) std::array<float, kPages * kPage * kWidth> cache{};
  std::array<int32_t, kBatch * 2> table{2, 0, 1, -7};
  std::array<int32_t, kBatch> lens{6, 3};
  alignas(64) std::array<float, kBatch * kHeads * kLatent> out{};
  std::array<float, kBatch * kHeads> lse{};
  flashmla_decode_params params = sized<flashmla_decode_params>();
  flashmla_context context = sized<flashmla_context>();

  explicit SmallCall(const char* backend = "reference") {
    for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 7 % 13) * 0.125F - 0.75F;
    for (size_t i = 0; i < cache.size(); ++i) cache[i] = static_cast<float>(i * 5 % 17) * 0.125F - 1.0F;
    params.q = tensor(q.data(), FLASHMLA_FLOAT32, {kBatch, 1, kHeads, kWidth});
    params.kv_cache = tensor(cache.data(), FLASHMLA_FLOAT32, {kPages, kPage, 1, kWidth});
    params.page_table = tensor(table.data(), FLASHMLA_INT32, {kBatch, 2});
    params.seq_lens = tensor(lens.data(), FLASHMLA_INT32, {kBatch});
    params.out = tensor(out.data(), FLASHMLA_FLOAT32, {kBatch, 1, kHeads, kLatent});
    params.lse = tensor(lse.data(), FLASHMLA_FLOAT32, {kBatch, kHeads, 1});
    params.latent_dim = kLatent;
    params.softmax_scale = 0.25F;
    context.backend = backend;
  }
  SmallCall(const SmallCall&) = delete;
  SmallCall& operator=(const SmallCall&) = delete;

  flashmla_status shape_of(flashmla_decode_shape& shape) const { return flashmla_decode_shape_of(&params, &shape); }

  // Asks for the workspace, takes it and decodes.
  flashmla_status decode() const {
    auto shape = sized<flashmla_decode_shape>();
    flashmla_status status = shape_of(shape);
    if (status != FLASHMLA_OK) return status;
    int64_t bytes = 0;
    status = flashmla_decode_workspace_bytes(&shape, params.options, &context, &bytes);
    if (status != FLASHMLA_OK) return status;
    const AlignedMemory workspace = aligned_memory(bytes);
    return flashmla_decode(&params, workspace.get(), bytes, &context);
  }
};

}  // namespace flashmla::c_api_test
