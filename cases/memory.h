// Host memory for test tensors: owned, hostile until written, and with proof of what was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "flashmla/flashmla.h"

namespace flashmla::cases {

// Owned memory, 256-byte aligned.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes);
  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

// Fills memory with NaN and infinities of both signs, as elements of `dtype` see it.
void poison(std::byte* memory, int64_t bytes, DType dtype);

// Fills memory with one NaN that no arithmetic produces, to see afterwards which elements were written.
void fill_sentinel(std::byte* memory, int64_t bytes, DType dtype);
bool is_sentinel(const std::byte* base, DType dtype, int64_t index);

// Elements of a float dtype, to and from float (rounded to nearest even).
float load_element(const std::byte* base, DType dtype, int64_t index);
void load_elements(const std::byte* base, DType dtype, int64_t count, float* values);
void store_elements(std::byte* base, DType dtype, const float* values, int64_t count);

}  // namespace flashmla::cases
