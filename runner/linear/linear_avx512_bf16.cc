// Processors with AVX512_BF16 (which all have AVX512_VNNI). Activations are prepared once, weights are read as they
// lie:
//
//   bf16 weights, many tokens: VDPBF16PS on activations rounded to bf16.
//   int8 weights, any number of tokens: VPDPBUSD on activations of 16 bits, as two digits of 8 bits with one scale for
//   each token and block of columns. Integer sums are exact, and 64 weights take three instructions instead of the
//   twelve of widening them to fp32: one token runs at the speed of memory.
#include "runner/linear/linear_avx512.h"

namespace flashmla::runner {

namespace {

// 16 activations, zeros from the n-th on.
__m512 part(const float* p, int64_t n) {
  return n >= 16 ? Avx512F32::load(p) : n > 0 ? Avx512F32::load_part(p, static_cast<int>(n)) : _mm512_setzero_ps();
}

struct DotBf16 {
  using X = Bf16;
  using Vec = __m512bh;
  using Acc = __m512;
  static constexpr int64_t kStep = 32;
  static constexpr int64_t kBlock = kBlockBytes / 2;
  static constexpr int64_t kExtra = 0;
  static constexpr int64_t kTileTokens = 6;
  static constexpr int kLoadAheadTokens = 0;

  static __mmask32 mask(int n) { return static_cast<__mmask32>((uint64_t{1} << n) - 1); }

  static Acc start(const Bf16*) { return _mm512_setzero_ps(); }
  static Acc dot(Acc sum, Vec w, Vec x) { return _mm512_dpbf16_ps(sum, w, x); }
  static Vec load(const Bf16* p) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
  static Vec load_x(const Bf16* p) { return load(p); }
  static Vec load_part(const Bf16* p, int n) {
    return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask(n), p));
  }

  static void pack(const float* from, int64_t cols, Bf16* to, int64_t to_step, Bf16*) {
    for (int64_t c = 0; c < cols; c += kStep, to += to_step) {
      const __m512 low = part(from + c, cols - c);
      const __m512 high = part(from + c + 16, cols - c - 16);
      _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
  }

  static Four sum_lanes(const Acc (&v)[4], const Bf16*) { return Avx512F32::sum_lanes(v, nullptr); }
};

// fp32 activations exactly: the sum of three bf16.
struct DotBf16x3 {
  struct X {  // of a step's 32 columns: 32 first parts, 32 second ones, 32 third ones
    uint16_t part[3];
  };
  using Vec = __m512bh;
  using Acc = __m512;
  struct Parts {
    __m512bh first, second, third;
  };
  static constexpr int64_t kStep = 32;
  static constexpr int64_t kBlock = 2048;
  static constexpr int64_t kExtra = 0;
  static constexpr int64_t kTileTokens = 4;
  static constexpr int kLoadAheadTokens = 0;

  static Acc start(const X*) { return _mm512_setzero_ps(); }
  static Acc dot(Acc sum, Vec w, const Parts& x) {
    return _mm512_dpbf16_ps(_mm512_dpbf16_ps(_mm512_dpbf16_ps(sum, w, x.third), w, x.second), w, x.first);
  }
  static Vec load(const Bf16* p) { return DotBf16::load(p); }
  static Vec load_part(const Bf16* p, int n) { return DotBf16::load_part(p, n); }
  static Parts load_x(const X* p) {
    const Bf16* parts = reinterpret_cast<const Bf16*>(p);
    return {load(parts), load(parts + kStep), load(parts + 2 * kStep)};
  }

  static __m512 rest(__m512 x, __m256bh part) {
    return _mm512_sub_ps(x, Avx512F32::widen(reinterpret_cast<__m256i>(part), Bf16{}));
  }
  static void pack(const float* from, int64_t cols, X* to, int64_t to_step, X*) {
    for (int64_t c = 0; c < cols; c += kStep, to += to_step) {
      for (int64_t half = 0; half < 2; ++half) {
        __m512 x = part(from + c + 16 * half, cols - c - 16 * half);
        for (int64_t i = 0; i < 3; ++i) {
          const __m256bh rounded = _mm512_cvtneps_pbh(x);
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + 2 * i + half, reinterpret_cast<__m256i>(rounded));
          x = rest(x, rounded);
        }
      }
    }
  }

  static Four sum_lanes(const Acc (&v)[4], const X*) { return Avx512F32::sum_lanes(v, nullptr); }
};

// q = 256 high + low is the activation in units of its block's scale, |q| <= kMostQ, both digits in -128 .. 127.
// VPDPBUSD multiplies unsigned by signed bytes, so weights enter as w + 128, and 128 q is taken away at the start.
struct DotInt8 {
  struct X {  // of a step's 64 columns: 64 high digits, then 64 low ones
    int8_t half[2];
  };
  using Vec = __m512i;
  struct Digits {
    __m512i high, low;
  };
  using Acc = Digits;
  static constexpr int64_t kStep = 64;
  static constexpr int64_t kBlock = 2048;
  static constexpr int64_t kExtra = 64;  // 16 int32: where the sums of the low digits start; 16 fp32: the scale
  static constexpr int64_t kTileTokens = 2;
  static constexpr int kLoadAheadTokens = 1;
  static constexpr float kMostQ = 32639;  // 127 * 256 + 127
  // A lane's true sum, kBlock / 16 products of at most 128 * kMostQ, fits 32 bits; what overflows on the way wraps
  // back.
  static_assert(kBlock / 16 * 128 * int64_t{32639} < int64_t{1} << 31);

  static Acc start(const X* extra) { return {_mm512_setzero_si512(), _mm512_loadu_si512(extra)}; }
  static Acc dot(Acc sum, Vec w, const Digits& x) {
    return {_mm512_dpbusd_epi32(sum.high, w, x.high), _mm512_dpbusd_epi32(sum.low, w, x.low)};
  }
  static Vec add_128(__m512i w) { return _mm512_xor_si512(w, _mm512_set1_epi8(static_cast<char>(0x80))); }
  static Vec load(const int8_t* p) { return add_128(_mm512_loadu_si512(p)); }
  static Vec load_part(const int8_t* p, int n) {  // columns past the last one: any weight, their digits are 0
    return add_128(_mm512_maskz_loadu_epi8((uint64_t{1} << n) - 1, p));
  }
  static Digits load_x(const X* p) { return {_mm512_loadu_si512(p), _mm512_loadu_si512(p + kStep / 2)}; }

  static void pack(const float* from, int64_t cols, X* to, int64_t to_step, X* extra) {
    const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
    __m512i most = _mm512_setzero_si512();  // as integers, since NaN > inf > finite there
    for (int64_t c = 0; c < cols; c += 16) {
      most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(part(from + c, cols - c)), no_sign));
    }
    const float largest = __builtin_bit_cast(float, _mm512_reduce_max_epi32(most));
    const bool finite = largest <= 3.402823466e38f;
    constexpr float kLeast = 1e-30f;  // smaller ones count as 0: their quotients would overflow
    const float inverse = finite && largest >= kLeast ? kMostQ / largest : 0.0f;
    const float scale = finite ? (largest >= kLeast ? largest / kMostQ : 0.0f) : __builtin_nanf("");
    __m512i sum = _mm512_setzero_si512();  // of q, in the lanes of VPDPBUSD
    for (int64_t c = 0; c < cols; c += kStep, to += to_step) {
      __m128i high[4], low[4];
      for (int i = 0; i < 4; ++i) {
        const __m512 x = part(from + c + 16 * i, cols - c - 16 * i);
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inverse)));
        const __m512i digit = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
        high[i] = _mm512_cvtepi32_epi8(digit);
        low[i] = _mm512_cvtepi32_epi8(q);
      }
      const __m512i highs = join(high);
      const __m512i lows = join(low);
      const __m512i ones = _mm512_set1_epi8(1);
      sum = _mm512_add_epi32(sum, _mm512_slli_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, highs), 8));
      sum = _mm512_dpbusd_epi32(sum, ones, lows);
      _mm512_storeu_si512(to, highs);
      _mm512_storeu_si512(to + kStep / 2, lows);
    }
    _mm512_storeu_si512(extra, _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), sum), 7));
    _mm512_storeu_ps(extra + kExtra / 2, _mm512_set1_ps(scale));
  }
  static __m512i join(const __m128i (&part)[4]) {
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(part[0]), part[1], 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(part[2]), part[3], 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }

  static Four sum_lanes(const Acc (&v)[4], const X* extra) {
    __m512 sums[4];
    for (int r = 0; r < 4; ++r) {
      sums[r] = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(v[r].high, 8), v[r].low));
    }
    const __m128 scale = _mm_loadu_ps(reinterpret_cast<const float*>(extra + kExtra / 2));
    return _mm_mul_ps(Avx512F32::sum_lanes(sums, nullptr), scale);
  }
};

constexpr LinearKernel make_kernel() {
  LinearKernel kernel = linear_f32<Avx512F32>("avx512_bf16");
  kernel.few[static_cast<int>(WeightType::kBF16)] = nullptr;
  kernel.exact[static_cast<int>(WeightType::kBF16)] = Tile<DotBf16x3>::many<Bf16, false>();
  kernel.many[static_cast<int>(WeightType::kBF16)] = Tile<DotBf16>::many<Bf16, false>();
  kernel.few[static_cast<int>(WeightType::kInt8)] = nullptr;
  kernel.many[static_cast<int>(WeightType::kInt8)] = Tile<DotInt8>::many<int8_t, false>();
  return kernel;
}

}  // namespace

const LinearKernel& linear_avx512_bf16() {
  static constexpr LinearKernel kKernel = make_kernel();
  return kKernel;
}

}  // namespace flashmla::runner
