#include <immintrin.h>

#include "runner/linear/linear_tile.h"

namespace flashmla::runner {

namespace {

struct Avx2F32 {
  using X = float;
  using Vec = __m256;
  using Acc = __m256;
  static constexpr int64_t kStep = 8;
  static constexpr int64_t kBlock = kBlockBytes / 4;
  static constexpr int64_t kExtra = 0;
  static constexpr int64_t kTileTokens = 3;  // 12 sums, 3 rows, 1 token: 16 of 16 registers, the fourth row from memory
  static constexpr int kLoadAheadTokens = 0;

  static Acc start(const float*) { return _mm256_setzero_ps(); }
  static Acc dot(Acc sum, Vec w, Vec x) { return _mm256_fmadd_ps(w, x, sum); }

  static Vec load_x(const float* p) { return load(p); }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static Vec load(const Bf16* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static Vec load(const Fp16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Vec load(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  // The first n lanes, zeros in the others; reads nothing past them.
  template <class W>
  static Vec load_part(const W* p, int n) {
    W part[kStep] = {};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return load(part);
  }

  static void pack(const float* from, int64_t cols, float* to, int64_t to_step, float*) {
    for (int64_t c = 0; c < cols; c += kStep, to += to_step) {
      widen(to, from + c, static_cast<int>(cols - c < kStep ? cols - c : kStep));
    }
  }
  template <class W>
  static void widen(float* to, const W* from, int n) {
    _mm256_storeu_ps(to, n == kStep ? load(from) : load_part(from, n));
  }

  static Four sum_lanes(const Acc (&v)[4], const float*) {
    const __m256 a = _mm256_add_ps(_mm256_unpacklo_ps(v[0], v[2]), _mm256_unpackhi_ps(v[0], v[2]));
    const __m256 b = _mm256_add_ps(_mm256_unpacklo_ps(v[1], v[3]), _mm256_unpackhi_ps(v[1], v[3]));
    const __m256 all = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));  // rows 0-3 in each half
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  }
};

}  // namespace

const LinearKernel& linear_avx2() {
  static constexpr LinearKernel kKernel = linear_f32<Avx2F32>("avx2");
  return kKernel;
}

}  // namespace flashmla::runner
