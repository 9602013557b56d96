// Vector interface of the CPU kernels over AVX-512 (F, BW, DQ, VL). Included only by files compiled for it.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace flashmla {

struct Avx512 {
  using F32 = __m512;
  using F64 = __m512d;
  static constexpr int kLanes = 16;         // of F32
  static constexpr int kLanes64 = 8;        // of F64
  static constexpr int kScoreTokens64 = 8;  // keys x 2 vectors of scores held in registers
  static constexpr int kPvRows = 8;         // query rows x 2 vectors of output held in registers

  static F32 zero() { return _mm512_setzero_ps(); }
  static F32 set1(float x) { return _mm512_set1_ps(x); }
  static F32 load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F32 x) { _mm512_storeu_ps(p, x); }
  static F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
  static F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
  static F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
  static F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
  static F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }  // b where either is NaN
  static F32 round(F32 x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F32 scale_by_pow2(F32 x, F32 n) { return _mm512_scalef_ps(x, n); }  // x * 2^n, n integral
  // x where a < b, else y.
  static F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
  }
  // x where limit > position (per lane), else y.
  static F32 select_below(int32_t position, const int32_t* limit, F32 x, F32 y) {
    const __mmask16 below = _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(limit), _mm512_set1_epi32(position));
    return _mm512_mask_blend_ps(below, y, x);
  }

  static F64 zero64() { return _mm512_setzero_pd(); }
  static F64 load64(const double* p) { return _mm512_loadu_pd(p); }
  static F64 set64(double x) { return _mm512_set1_pd(x); }
  static F64 fma64(F64 a, F64 b, F64 c) { return _mm512_fmadd_pd(a, b, c); }
  static void store_scaled64(float* p, F64 x, double scale) {
    _mm256_storeu_ps(p, _mm512_cvtpd_ps(_mm512_mul_pd(x, _mm512_set1_pd(scale))));
  }

  static void widen8_fp32(double* to, const float* from) {
    _mm512_storeu_pd(to, _mm512_cvtps_pd(_mm256_loadu_ps(from)));
  }

  // Eight elements to fp32.
  static void widen8_bf16(float* to, const uint16_t* from) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    _mm256_storeu_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
  }
  static void widen8_fp16(float* to, const uint16_t* from) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }

  // Sums of 16 vectors, in AVX-512 alone: lane i of the result is the sum of the lanes of x[i].
  static F32 reduce_each(F32* x) {
    for (int i = 0; i < 8; ++i) {  // lanes of 8 pairs: [x_i | x_i+8] halves
      x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[i], x[i + 8], 0x44), _mm512_shuffle_f32x4(x[i], x[i + 8], 0xee));
    }
    for (int i = 0; i < 4; ++i) {  // 128-bit quarters: x_i, x_i+4, x_i+8, x_i+12
      x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[i], x[i + 4], 0x88), _mm512_shuffle_f32x4(x[i], x[i + 4], 0xdd));
    }
    const F32 low = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[2]), _mm512_unpackhi_ps(x[0], x[2]));
    const F32 high = _mm512_add_ps(_mm512_unpacklo_ps(x[1], x[3]), _mm512_unpackhi_ps(x[1], x[3]));
    const F32 sums = _mm512_add_ps(_mm512_unpacklo_ps(low, high), _mm512_unpackhi_ps(low, high));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15), sums);
  }
};

}  // namespace flashmla
