// Division by a number that the host knows: a multiplication and a shift on the device.
#pragma once

#include <cstdint>

#include "cuda/tile/layout.h"

namespace flashmla::cuda {

// Division by a number that the host knows (Granlund and Montgomery 1994): exact for 0 <= n < 2^31.
struct FastDivisor {
  uint32_t divisor = 1;
  uint32_t multiplier = 0;
  uint32_t shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    // The smallest m with m d >= 2^(31 + shift) fits into 32 bits, because 2^shift < 2 d.
    multiplier = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + d - 1) / d);
  }
  FLASHMLA_HD uint32_t quotient(uint32_t n) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(n) * multiplier >> (31 + shift));
  }
};

}  // namespace flashmla::cuda
