// SplitMix64 (Steele, Lea, Flood 2014): value i of stream s is split_mix(s + i * kSplitMixStep), whoever computes it.
#pragma once

#include <cstdint>

namespace flashmla::runner {

constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

constexpr uint64_t split_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace flashmla::runner
