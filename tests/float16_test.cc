// bf16 and fp16 conversions, exhaustively where there are 65,536 cases, against formulas that share nothing with ours.
#include "core/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cases/random.h"

namespace flashmla {
namespace {

constexpr uint32_t kPatterns = 1u << 16;

// The value of a 16-bit pattern with `exponent_bits` of exponent, from its definition.
double exact_value(uint32_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = bits & ((1u << mantissa_bits) - 1);
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
}

// Nearest even by searching: among the neighbours of `guess`, the closest to x; of two, the even one.
uint16_t nearest(float x, int exponent_bits) {
  const uint32_t infinity = ((1u << exponent_bits) - 1) << (15 - exponent_bits);
  const double size = std::fabs(static_cast<double>(x));
  // Values grow with the pattern: bisect for the largest pattern that is not above x. Infinity counts as the next power
  // of 2.
  const auto value = [&](uint32_t bits) {
    return bits == infinity ? std::ldexp(1.0, 1 << (exponent_bits - 1)) : exact_value(bits, exponent_bits);
  };
  uint32_t low = 0;
  uint32_t high = infinity;
  if (size >= value(infinity)) low = infinity;
  while (low + 1 < high && low != infinity) {
    const uint32_t middle = (low + high) / 2;
    (value(middle) <= size ? low : high) = middle;
  }
  uint32_t best = low;
  if (low != infinity) {
    const double below = size - value(low);
    const double above = value(low + 1) - size;
    if (above < below || (above == below && (low & 1) != 0)) best = low + 1;
  }
  return static_cast<uint16_t>(best | (std::signbit(x) ? 0x8000u : 0u));
}

template <class T>
void expect_exact_widening(int exponent_bits) {
  for (uint32_t bits = 0; bits < kPatterns; ++bits) {
    const float got = to_float(T{static_cast<uint16_t>(bits)});
    const double want = exact_value(bits, exponent_bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_TRUE(std::isnan(to_float(from_float<T>(got)))) << bits;
      continue;
    }
    ASSERT_EQ(got, want) << bits;
    ASSERT_EQ(std::signbit(got), std::signbit(want)) << bits;
    ASSERT_EQ(from_float<T>(got).bits, bits) << "does not come back";
  }
}

template <class T>
void expect_nearest(float x, int exponent_bits) {
  ASSERT_EQ(from_float<T>(x).bits, nearest(x, exponent_bits)) << std::hexfloat << x;
  ASSERT_EQ(from_float<T>(-x).bits, nearest(-x, exponent_bits)) << std::hexfloat << -x;
}

// Around every representable value and every midpoint, where rounding decides, and at random patterns.
template <class T>
void expect_nearest_everywhere(int exponent_bits) {
  const uint32_t infinity = ((1u << exponent_bits) - 1) << (15 - exponent_bits);
  for (uint32_t bits = 0; bits < infinity; bits += 3) {
    const double here = exact_value(bits, exponent_bits);
    const double next =
        bits + 1 == infinity ? std::ldexp(1.0, 1 << (exponent_bits - 1)) : exact_value(bits + 1, exponent_bits);
    const auto middle = static_cast<float>((here + next) / 2);
    for (float x :
         {static_cast<float>(here), middle, std::nextafterf(middle, 0.0f), std::nextafterf(middle, INFINITY)}) {
      expect_nearest<T>(x, exponent_bits);
    }
  }
  cases::Random random({16});
  for (int i = 0; i < 100'000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
    if (!std::isnan(x)) expect_nearest<T>(x, exponent_bits);
  }
}

TEST(Float16, EveryBFloat16WidensExactly) { expect_exact_widening<BFloat16>(8); }
TEST(Float16, EveryFloat16WidensExactly) { expect_exact_widening<Float16>(5); }
TEST(Float16, BFloat16RoundsToNearestEven) { expect_nearest_everywhere<BFloat16>(8); }
TEST(Float16, Float16RoundsToNearestEven) { expect_nearest_everywhere<Float16>(5); }

TEST(Float16, NaNStaysNaN) {
  for (uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0xffffffffu, 0x7f80ffffu}) {
    const auto nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(to_float(from_float<BFloat16>(nan)))) << bits;
    EXPECT_TRUE(std::isnan(to_float(from_float<Float16>(nan)))) << bits;
  }
}

}  // namespace
}  // namespace flashmla
