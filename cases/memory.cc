#include "cases/memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/float16.h"

namespace flashmla::cases {

namespace {

constexpr int64_t kBufferAlignment = 256;

// NaN payloads that no arithmetic of ours produces, by element type.
constexpr uint32_t kSentinel32 = 0xffc5a5a5u;
constexpr uint16_t kSentinelBFloat16 = 0xffc5u;
constexpr uint16_t kSentinelFloat16 = 0xfe5au;

template <class Int>
void fill_pattern(std::byte* memory, int64_t bytes, const std::array<Int, 8>& pattern) {
  std::array<std::byte, 1024> block;
  for (size_t i = 0; i < block.size(); i += sizeof(pattern))
    std::memcpy(block.data() + i, pattern.data(), sizeof(pattern));
  for (int64_t i = 0; i < bytes; i += static_cast<int64_t>(block.size())) {
    std::memcpy(memory + i, block.data(), std::min<size_t>(block.size(), static_cast<size_t>(bytes - i)));
  }
}

template <class T>
void store_as(std::byte* base, const float* values, int64_t count) {
  for (int64_t d = 0; d < count; ++d) reinterpret_cast<T*>(base)[d] = from_float<T>(values[d]);
}

template <class T>
void load_as(const std::byte* base, int64_t count, float* values) {
  for (int64_t d = 0; d < count; ++d) values[d] = to_float(reinterpret_cast<const T*>(base)[d]);
}

}  // namespace

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  const int64_t rounded = (std::max<int64_t>(bytes, 1) + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kBufferAlignment, static_cast<size_t>(rounded))));
  if (data_ == nullptr) throw std::bad_alloc();
}

void Buffer::Free::operator()(std::byte* memory) const { std::free(memory); }

void poison(std::byte* memory, int64_t bytes, DType dtype) {
  using Words = std::array<uint32_t, 8>;
  using Halves = std::array<uint16_t, 8>;
  switch (dtype) {
    case DType::kFloat16:
      return fill_pattern(memory, bytes, Halves{0x7e00, 0xfe01, 0x7c00, 0xfc00, 0x7fff, 0x7d55, 0xffff, 0xfc01});
    case DType::kBFloat16:
      return fill_pattern(memory, bytes, Halves{0x7fc0, 0xffc1, 0x7f80, 0xff80, 0x7fff, 0x7f95, 0xffff, 0xff81});
    default:
      return fill_pattern(
          memory, bytes,
          Words{0x7fc00000, 0xffc00001, 0x7f800000, 0xff800000, 0x7fffffff, 0x7f955555, 0xffffffff, 0xff800001});
  }
}

void fill_sentinel(std::byte* memory, int64_t bytes, DType dtype) {
  const auto fill = [&](auto value) {
    std::array<decltype(value), 8> pattern;
    pattern.fill(value);
    fill_pattern(memory, bytes, pattern);
  };
  switch (dtype) {
    case DType::kFloat16: return fill(kSentinelFloat16);
    case DType::kBFloat16: return fill(kSentinelBFloat16);
    default: return fill(kSentinel32);
  }
}

bool is_sentinel(const std::byte* base, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kFloat16: return reinterpret_cast<const uint16_t*>(base)[index] == kSentinelFloat16;
    case DType::kBFloat16: return reinterpret_cast<const uint16_t*>(base)[index] == kSentinelBFloat16;
    default: return reinterpret_cast<const uint32_t*>(base)[index] == kSentinel32;
  }
}

float load_element(const std::byte* base, DType dtype, int64_t index) {
  float value = 0;
  load_elements(base + index * dtype_bytes(dtype), dtype, 1, &value);
  return value;
}

void load_elements(const std::byte* base, DType dtype, int64_t count, float* values) {
  switch (dtype) {
    case DType::kFloat16: return load_as<Float16>(base, count, values);
    case DType::kBFloat16: return load_as<BFloat16>(base, count, values);
    default: return load_as<float>(base, count, values);
  }
}

void store_elements(std::byte* base, DType dtype, const float* values, int64_t count) {
  switch (dtype) {
    case DType::kFloat16: return store_as<Float16>(base, values, count);
    case DType::kBFloat16: return store_as<BFloat16>(base, values, count);
    default: return store_as<float>(base, values, count);
  }
}

}  // namespace flashmla::cases
