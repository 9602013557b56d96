// Vector interface of the CPU kernels over AVX2, FMA and F16C (see simd_avx512.h for what each member does).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace flashmla {

struct Avx2 {
  using F32 = __m256;
  using F64 = __m256d;
  static constexpr int kLanes = 8;
  static constexpr int kLanes64 = 4;
  static constexpr int kScoreTokens64 = 4;
  static constexpr int kPvRows = 4;

  static F32 zero() { return _mm256_setzero_ps(); }
  static F32 set1(float x) { return _mm256_set1_ps(x); }
  static F32 load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F32 x) { _mm256_storeu_ps(p, x); }
  static F32 add(F32 a, F32 b) { return _mm256_add_ps(a, b); }
  static F32 sub(F32 a, F32 b) { return _mm256_sub_ps(a, b); }
  static F32 mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
  static F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
  static F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
  static F32 round(F32 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F32 scale_by_pow2(F32 x, F32 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  static F32 select_less(F32 a, F32 b, F32 x, F32 y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
  static F32 select_below(int32_t position, const int32_t* limit, F32 x, F32 y) {
    const __m256i limits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(limit));
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(limits, _mm256_set1_epi32(position))));
  }

  static F64 zero64() { return _mm256_setzero_pd(); }
  static F64 load64(const double* p) { return _mm256_loadu_pd(p); }
  static F64 set64(double x) { return _mm256_set1_pd(x); }
  static F64 fma64(F64 a, F64 b, F64 c) { return _mm256_fmadd_pd(a, b, c); }
  static void store_scaled64(float* p, F64 x, double scale) {
    _mm_storeu_ps(p, _mm256_cvtpd_ps(_mm256_mul_pd(x, _mm256_set1_pd(scale))));
  }

  static void widen8_fp32(double* to, const float* from) {
    _mm256_storeu_pd(to, _mm256_cvtps_pd(_mm_loadu_ps(from)));
    _mm256_storeu_pd(to + 4, _mm256_cvtps_pd(_mm_loadu_ps(from + 4)));
  }
  static void widen8_bf16(float* to, const uint16_t* from) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    _mm256_storeu_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
  }
  static void widen8_fp16(float* to, const uint16_t* from) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
};

}  // namespace flashmla
