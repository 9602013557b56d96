// The 8- and 16-bit floating-point formats that checkpoints store, one value at a time.
#pragma once

#include <bit>
#include <cstdint>

namespace flashmla::runner {

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Round to nearest, ties to even; NaN stays NaN. A choice, no branch: the compiler turns loops over it into vector
// code.
inline uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // The exponent's bias differs by 112; the multiplication makes subnormal numbers right too.
  const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

// e4m3 as NVIDIA, Arm and Intel define it ("fn"): no infinities, 0x7f and 0xff are NaN, largest value 448. The bits
// moved into place have an exponent that is 120 too small.
inline float e4m3_to_float(uint8_t bits) {
  const uint32_t magnitude = bits & 0x7fu;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t value = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 20) * 0x1p120F);
  return std::bit_cast<float>((magnitude == 0x7fu ? 0x7fc00000u : value) | sign);
}

}  // namespace flashmla::runner
