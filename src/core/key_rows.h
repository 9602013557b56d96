// Where the cached rows of one request and KV head lie.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashmla {

struct KeyRows {
  const int32_t* table = nullptr;   // the request's pages
  const std::byte* base = nullptr;  // page 0, token 0 of the KV head
  int64_t page_stride = 0;          // bytes
  int64_t token_stride = 0;         // bytes
  int64_t page_size = 1;            // tokens

  const std::byte* at(int64_t position) const {
    return base + table[position / page_size] * page_stride + position % page_size * token_stride;
  }
};

}  // namespace flashmla
