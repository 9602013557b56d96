// Random numbers that are equal on every machine and cheap enough to fill large caches.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace flashmla::cases {

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  // A stream of its own for every list of keys.
  explicit Random(std::initializer_list<uint64_t> keys) {
    for (uint64_t key : keys) {
      state_ ^= key + 0x9e3779b97f4a7c15u;
      state_ = next();
    }
  }

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  int64_t below(int64_t bound) { return static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }

  // Mean 0, variance 1, at most 3.47 in magnitude: the sum of four uniform values.
  float normal() {
    const uint64_t bits = next();
    const auto sum =
        static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return static_cast<float>(sum - 131070) * (1.0f / 37837.0f);
  }

  float sign() { return (next() & 1) != 0 ? 1.0f : -1.0f; }

 private:
  uint64_t state_ = 0;
};

}  // namespace flashmla::cases
