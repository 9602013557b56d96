// A fuzzer's input as a stream of choices: the same targets run on random bytes in ctest and under libFuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace flashmla::fuzz {

// Past its end the stream reads as zeros.
class Bytes {
 public:
  explicit Bytes(std::span<const uint8_t> data) : data_(data) {}

  int64_t below(int64_t bound) {  // bound at most 65536
    uint32_t value = next();
    if (bound > 256) value = value << 8 | next();
    return static_cast<int64_t>(value) % bound;
  }
  bool one_in(int64_t n) { return below(n) == n - 1; }  // false at the stream's end
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  template <class T>
  T any() {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value = value << 8 | next();
    return static_cast<T>(value);
  }
  template <class T, size_t N>
  T pick(const T (&values)[N]) {
    return values[below(static_cast<int64_t>(N))];
  }

 private:
  uint8_t next() { return at_ < data_.size() ? data_[at_++] : uint8_t{0}; }

  std::span<const uint8_t> data_;
  size_t at_ = 0;
};

}  // namespace flashmla::fuzz
