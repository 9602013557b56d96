// fp32 multiply-adds over AVX-512 (F, BW, DQ, VL). Included only by files compiled for it; the anonymous namespace
// gives each its own copies (linear_tile.h).
#pragma once

#include <immintrin.h>

#include "runner/linear/linear_tile.h"

namespace flashmla::runner {

namespace {

struct Avx512F32 {
  using X = float;
  using Vec = __m512;
  using Acc = __m512;
  static constexpr int64_t kStep = 16;
  static constexpr int64_t kBlock = kBlockBytes / 4;
  static constexpr int64_t kExtra = 0;
  static constexpr int64_t kTileTokens = 6;  // 24 sums, 4 rows, 1 token: 29 of 32 registers
  static constexpr int kLoadAheadTokens = 0;

  static __mmask16 mask(int n) { return static_cast<__mmask16>((1U << n) - 1); }

  static Acc start(const float*) { return _mm512_setzero_ps(); }
  static Acc dot(Acc sum, Vec w, Vec x) { return _mm512_fmadd_ps(w, x, sum); }

  static Vec widen(__m256i half, Bf16) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static Vec widen(__m256i half, Fp16) { return _mm512_cvtph_ps(half); }
  static Vec widen(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }

  static Vec load_x(const float* p) { return load(p); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static Vec load(const int8_t* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  template <class Half>
  static Vec load(const Half* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), Half{});
  }
  // The first n lanes, zeros in the others; reads nothing past them.
  static Vec load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static Vec load_part(const int8_t* p, int n) { return widen(_mm_maskz_loadu_epi8(mask(n), p)); }
  template <class Half>
  static Vec load_part(const Half* p, int n) {
    return widen(_mm256_maskz_loadu_epi16(mask(n), p), Half{});
  }

  static void pack(const float* from, int64_t cols, float* to, int64_t to_step, float*) {
    for (int64_t c = 0; c < cols; c += kStep, to += to_step) {
      widen(to, from + c, static_cast<int>(cols - c < kStep ? cols - c : kStep));
    }
  }
  template <class W>
  static void widen(float* to, const W* from, int n) {
    _mm512_storeu_ps(to, n == kStep ? load(from) : load_part(from, n));
  }

  static Four sum_lanes(const Acc (&v)[4], const float*) {
    const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[2]), _mm512_unpackhi_ps(v[0], v[2]));
    const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(v[1], v[3]), _mm512_unpackhi_ps(v[1], v[3]));
    const __m512 all = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));  // rows 0-3 in each quarter
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  }
};

}  // namespace

}  // namespace flashmla::runner
