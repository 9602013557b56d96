// bf16 cache on processors with AVX512_BF16: VDPBF16PS multiplies pairs of bf16 and adds to fp32, on key rows as they
// lie in the cache, with no widening.
#include "cpu/attention_kernel.h"
#include "cpu/simd_avx512.h"

namespace flashmla {

namespace {

struct ScoreBf16 {
  using Key = uint32_t;  // two neighbouring elements
  using Query = uint32_t;
  using Vec = __m512bh;
  using Sum = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kPack = 2;
  static constexpr int kVecs = 2;
  static constexpr int kTokens = 8;
  static constexpr bool kRemainder = true;
  static constexpr bool kWidens = false;

  static __m512 zero() { return _mm512_setzero_ps(); }
  static __m512bh load(const Query* q) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(q)); }
  static __m512bh broadcast(const Key* k) {
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int32_t>(*k)));
  }
  static __m512 dot(__m512 sum, __m512bh q, __m512bh k) { return _mm512_dpbf16_ps(sum, q, k); }
  static void store(float* to, __m512 sum, double scale) {
    Avx512::store(to, Avx512::mul(sum, Avx512::set1(static_cast<float>(scale))));
  }
  static Query pack_query(const uint16_t* q) {
    Query pair;
    std::memcpy(&pair, q, sizeof(pair));
    return pair;
  }
};

struct ValueBf16 {
  using Element = uint16_t;
  using Weight = uint32_t;  // weights of two neighbouring keys
  using Vec = __m512bh;
  static constexpr int kPack = 2;
  static constexpr int kColumns = 32;

  // Elements of two rows, interleaved: v[0] holds columns 0-15, v[1] columns 16-31.
  static void load(const Element* const* rows, int64_t column, __m512bh (&v)[2]) {
    alignas(64) static constexpr uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(kLow);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i even = _mm512_loadu_si512(rows[0] + column);
    const __m512i odd = _mm512_loadu_si512(rows[1] + column);
    v[0] = reinterpret_cast<__m512bh>(_mm512_permutex2var_epi16(even, low, odd));
    v[1] = reinterpret_cast<__m512bh>(_mm512_permutex2var_epi16(even, high, odd));
  }
  static __m512bh broadcast(const Weight* p) {
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int32_t>(*p)));
  }
  static __m512 dot(__m512 sum, __m512bh v, __m512bh p) { return _mm512_dpbf16_ps(sum, v, p); }
  static void store_weights(Weight* to, const __m512 (&p)[kPack]) {
    const __m512i even = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p[0])));
    const __m512i odd = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p[1])));
    _mm512_storeu_si512(to, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
  }
};

// Rows as they lie in the cache; copied to scratch only where a kernel would read past a row's end.
struct CacheRows {
  static int64_t element_bytes(DType) { return 2; }
  static bool key_reads_fit(const ItemShape& shape, int step) { return shape.qk_dim() % step == 0; }
  static void widen(uint16_t* to, const std::byte* from, int width, DType) {
    std::memcpy(to, from, static_cast<size_t>(width) * sizeof(uint16_t));
  }
  static void gather(const ItemShape& shape, const KeyRows& source, const Block& block, int width, int read,
                     uint16_t* copies, const uint16_t** rows) {
    for_each_key(source, block.first, block.count, [&](int t, const std::byte* from) {
      if (read <= width) {
        rows[t] = reinterpret_cast<const uint16_t*>(from);
        return;
      }
      uint16_t* to = copies + static_cast<int64_t>(t) * shape.padded_dim;
      std::memset(to, 0, static_cast<size_t>(shape.padded_dim) * sizeof(uint16_t));
      std::memcpy(to, from, static_cast<size_t>(width) * sizeof(uint16_t));
      rows[t] = to;
    });
  }
};

}  // namespace

const AttentionKernel& avx512_bf16_kernel() {
  static const AttentionKernel kKernel =
      BlockKernel<Avx512, ScoreBf16, ValueBf16, CacheRows>::table("cpu_avx512_bf16_dot", &avx512_kernel());
  return kKernel;
}

}  // namespace flashmla
