// Vector interface of the CPU kernels in plain C++, four lanes wide for the compiler's baseline instruction set (see
// simd_avx512.h for what each member does). Runs on every processor.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/float16.h"

namespace flashmla {

struct Scalar {
  static constexpr int kLanes = 4;
  static constexpr int kLanes64 = 4;
  static constexpr int kScoreTokens64 = 4;
  static constexpr int kPvRows = 4;
  struct F32 {
    float lane[kLanes];
  };
  struct F64 {
    double lane[kLanes64];
  };

  template <class Each>
  static F32 each(const Each& value) {
    F32 result;
    for (int i = 0; i < kLanes; ++i) result.lane[i] = value(i);
    return result;
  }

  static F32 zero() { return set1(0.0f); }
  static F32 set1(float x) {
    return each([&](int) { return x; });
  }
  static F32 load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static void store(float* p, F32 x) {
    for (int i = 0; i < kLanes; ++i) p[i] = x.lane[i];
  }
  static F32 add(F32 a, F32 b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F32 sub(F32 a, F32 b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F32 mul(F32 a, F32 b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F32 fma(F32 a, F32 b, F32 c) {
    return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  static F32 max(F32 a, F32 b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F32 round(F32 x) {
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds |x| < 2^22 to an integer
    return each([&](int i) { return (x.lane[i] + kMagic) - kMagic; });
  }
  static F32 scale_by_pow2(F32 x, F32 n) {
    return each([&](int i) {
      const float bounded = n.lane[i] > -127.0f ? n.lane[i] : -127.0f;  // a NaN too: converting one is undefined
      return x.lane[i] * std::bit_cast<float>((static_cast<int32_t>(bounded) + 127) << 23);
    });
  }
  static F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]; });
  }
  static F32 select_below(int32_t position, const int32_t* limit, F32 x, F32 y) {
    return each([&](int i) { return limit[i] > position ? x.lane[i] : y.lane[i]; });
  }

  static F64 zero64() { return set64(0.0); }
  static F64 load64(const double* p) {
    F64 result;
    for (int i = 0; i < kLanes64; ++i) result.lane[i] = p[i];
    return result;
  }
  static F64 set64(double x) {
    F64 result;
    for (double& lane : result.lane) lane = x;
    return result;
  }
  static F64 fma64(F64 a, F64 b, F64 c) {
    for (int i = 0; i < kLanes64; ++i) c.lane[i] += a.lane[i] * b.lane[i];
    return c;
  }
  static void store_scaled64(float* p, F64 x, double scale) {
    for (int i = 0; i < kLanes64; ++i) p[i] = static_cast<float>(x.lane[i] * scale);
  }

  static void widen8_fp32(double* to, const float* from) {
    for (int i = 0; i < 8; ++i) to[i] = static_cast<double>(from[i]);
  }
  static void widen8_bf16(float* to, const uint16_t* from) {
    for (int i = 0; i < 8; ++i) to[i] = to_float(BFloat16{from[i]});
  }
  static void widen8_fp16(float* to, const uint16_t* from) {
    for (int i = 0; i < 8; ++i) to[i] = to_float(Float16{from[i]});
  }
};

}  // namespace flashmla
