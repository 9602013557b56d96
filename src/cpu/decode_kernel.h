// The decode kernel of the "cpu" back end, written once against the vector interface (simd_*.h) and two small policies:
//
//   Score   how queries meet keys:   s[t][row] += q[row][..] . k[t][..]
//   Value   how weights meet values: o[row][c] += p[t][row] * v[t][c]
//
// One block of kBlockKeys keys at a time: score -> soft-max -> accumulate. Lanes are query rows in the first two, so
// the soft-max has no reduction across lanes; lanes are columns in the third, so the output needs no transposition.
// Rows that do not fill a vector of lanes are scored four at a time with lanes along the key instead ("Remainder").
// docs/kernels/cpu-decode.md has the budget and the figures.
//
// Everything here is a template over the policies: each instruction set's file makes its own copies, so that no code
// compiled for a wider one is ever linked into a narrower one.
#pragma once

#include <cstring>

#include "cpu/decode_item.h"

namespace flashmla {

// Score policy: fp32 keys and queries, fp32 sums.
template <class Simd>
struct ScoreF32 {
  using Key = float;
  using Query = float;
  using Vec = typename Simd::F32;  // of queries or a broadcast key
  using Sum = typename Simd::F32;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int kPack = 1;  // key elements a Key holds
  static constexpr int kVecs = 2;
  static constexpr int kTokens = Simd::kLanes == 16 ? 8 : 4;
  static constexpr bool kRemainder = true;

  static Sum zero() { return Simd::zero(); }
  static Vec load(const Query* q) { return Simd::load(q); }
  static Vec broadcast(const Key* k) { return Simd::set1(*k); }
  static Sum dot(Sum sum, Vec q, Vec k) { return Simd::fma(q, k, sum); }
  static void store(float* to, Sum sum, float scale) { Simd::store(to, Simd::mul(sum, Simd::set1(scale))); }
  static Query pack_query(const float* q) { return *q; }
};

// Score policy: fp32 keys, double queries and sums; fp32 inputs are held to 1e-6 (contract, "Accuracy bound").
template <class Simd>
struct ScoreF64 {
  using Key = float;
  using Query = double;
  using Vec = typename Simd::F64;
  using Sum = typename Simd::F64;
  static constexpr int kLanes = Simd::kLanes64;
  static constexpr int kPack = 1;
  static constexpr int kVecs = 2;
  static constexpr int kTokens = 4;
  static constexpr bool kRemainder = false;

  static Sum zero() { return Simd::zero64(); }
  static Vec load(const Query* q) { return Simd::load64(q); }
  static Vec broadcast(const Key* k) { return Simd::set64(static_cast<double>(*k)); }
  static Sum dot(Sum sum, Vec q, Vec k) { return Simd::fma64(q, k, sum); }
  static void store(float* to, Sum sum, float scale) { Simd::store_scaled64(to, sum, static_cast<double>(scale)); }
  static Query pack_query(const float* q) { return static_cast<double>(*q); }
};

// Value policy: fp32 values and weights.
template <class Simd>
struct ValueF32 {
  using Element = float;
  using Weight = float;
  using Vec = typename Simd::F32;
  static constexpr int kPack = 1;  // keys a Weight holds
  static constexpr int kColumns = 2 * Simd::kLanes;

  static void load(const Element* const* rows, int64_t column, Vec (&v)[2]) {
    v[0] = Simd::load(rows[0] + column);
    v[1] = Simd::load(rows[0] + column + Simd::kLanes);
  }
  static Vec broadcast(const Weight* p) { return Simd::set1(*p); }
  static typename Simd::F32 dot(typename Simd::F32 sum, Vec v, Vec p) { return Simd::fma(v, p, sum); }
  static void store_weights(Weight* to, const typename Simd::F32 (&p)[kPack]) { Simd::store(to, p[0]); }
};

// 2^x for x <= 0 (or NaN): 0 below -126, relative error below 2e-7. Coefficients: Taylor's, of 2^f = e^(f ln 2) on |f|
// <= 0.5.
template <class Simd>
typename Simd::F32 exp2_nonpositive(typename Simd::F32 x) {
  const auto n = Simd::round(x);
  const auto f = Simd::sub(x, n);
  auto y = Simd::set1(1.5403530e-4f);
  y = Simd::fma(y, f, Simd::set1(1.3333558e-3f));
  y = Simd::fma(y, f, Simd::set1(9.6181291e-3f));
  y = Simd::fma(y, f, Simd::set1(5.5504109e-2f));
  y = Simd::fma(y, f, Simd::set1(2.4022651e-1f));
  y = Simd::fma(y, f, Simd::set1(6.9314718e-1f));
  y = Simd::fma(y, f, Simd::set1(1.0f));
  return Simd::select_less(x, Simd::set1(-126.0f), Simd::zero(), Simd::scale_by_pow2(y, n));
}

template <class Simd, class Score, class Value, class Source>
struct BlockKernel {
  using F32 = typename Simd::F32;
  using Element = typename Value::Element;  // of a key row as both policies read it
  using Query = typename Score::Query;
  using Weight = typename Value::Weight;
  static constexpr int kTailRows = 4;  // rows of a remainder group

  // Rows scored with lanes along rows; the others, at most 12, with lanes along the key.
  static int vector_rows(const ItemShape& shape) {
    const int rest = shape.rows % kRowPad;
    const bool by_key = Score::kRemainder && rest <= 12 && Source::key_reads_fit(shape, Score::kPack * Score::kLanes);
    return by_key ? shape.rows - rest : shape.padded_rows;
  }

  // --- queries: [d / kPack][vector_rows] Query, then [remainder rows][padded_dim] Element
  // -------------------------------

  static Element* remainder_queries(const ItemShape& shape, const Scratch& scratch) {
    const int64_t steps = (shape.latent_dim + shape.rope_dim) / Score::kPack;
    return reinterpret_cast<Element*>(static_cast<Query*>(scratch.queries) + steps * vector_rows(shape));
  }

  static void load_queries(const ItemShape& shape, const Scratch& scratch, const std::byte* const* latent,
                           const std::byte* const* rope) {
    const int width = shape.latent_dim + shape.rope_dim;
    const int vectors = vector_rows(shape);
    Element* row = Source::zero_row(shape, scratch);  // free until the keys come: one query, widened
    auto* packed = static_cast<Query*>(scratch.queries);
    Element* remainder = remainder_queries(shape, scratch);
    for (int r = 0; r < shape.padded_rows; ++r) {
      if (r >= vectors && r >= (shape.rows + kTailRows - 1) / kTailRows * kTailRows) break;
      std::memset(row, 0, static_cast<size_t>(shape.padded_dim) * sizeof(Element));
      if (r < shape.rows) {
        Source::widen(row, latent[r], shape.latent_dim, shape.dtype);
        Source::widen(row + shape.latent_dim, rope[r], shape.rope_dim, shape.dtype);
      }
      if (r >= vectors) {
        std::memcpy(remainder + static_cast<int64_t>(r - vectors) * shape.padded_dim, row,
                    static_cast<size_t>(shape.padded_dim) * sizeof(Element));
        continue;
      }
      for (int d = 0; d < width / Score::kPack; ++d) {
        packed[static_cast<int64_t>(d) * vectors + r] = Score::pack_query(row + d * Score::kPack);
      }
    }
    std::memset(row, 0, static_cast<size_t>(shape.padded_dim) * sizeof(Element));
  }

  // --- scores
  // -----------------------------------------------------------------------------------------------------------

  template <int kVecs>
  static void score_tile(const ItemShape& shape, const Query* queries, int vectors, const Element* const* keys,
                         float* scores) {
    constexpr int kTokens = Score::kTokens;
    typename Score::Sum sum[kTokens][kVecs];
    for (auto& token : sum) {
      for (auto& part : token) part = Score::zero();
    }
    const typename Score::Key* key[kTokens];
    for (int t = 0; t < kTokens; ++t) key[t] = reinterpret_cast<const typename Score::Key*>(keys[t]);
    const int steps = (shape.latent_dim + shape.rope_dim) / Score::kPack;
    for (int d = 0; d < steps; ++d) {
      typename Score::Vec q[kVecs];
      for (int v = 0; v < kVecs; ++v) q[v] = Score::load(queries + v * Score::kLanes);
      queries += vectors;
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const auto k = Score::broadcast(key[t] + d);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) sum[t][v] = Score::dot(sum[t][v], q[v], k);
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      for (int v = 0; v < kVecs; ++v) {
        Score::store(scores + t * shape.padded_rows + v * Score::kLanes, sum[t][v], shape.score_scale);
      }
    }
  }

  // kTailRows rows against kLanes / kTailRows keys; lanes run along the key and are summed at the end.
  static void score_remainder(const ItemShape& shape, const Element* queries, const Element* const* keys,
                              float* scores) {
    constexpr int kTokens = Score::kLanes / kTailRows;
    typename Score::Sum sum[kTokens * kTailRows];
    for (auto& part : sum) part = Score::zero();
    const int width = shape.latent_dim + shape.rope_dim;  // rounded up to whole vectors: zeros, or nothing to round
    const auto as_vec = [](const Element* p) { return Score::load(reinterpret_cast<const typename Score::Query*>(p)); };
    for (int d = 0; d < width; d += Score::kPack * Score::kLanes) {
      typename Score::Vec q[kTailRows];
#pragma GCC unroll 4
      for (int r = 0; r < kTailRows; ++r) q[r] = as_vec(queries + static_cast<int64_t>(r) * shape.padded_dim + d);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        const auto k = as_vec(keys[t] + d);
#pragma GCC unroll 4
        for (int r = 0; r < kTailRows; ++r) sum[t * kTailRows + r] = Score::dot(sum[t * kTailRows + r], q[r], k);
      }
    }
    float sums[Score::kLanes];
    Score::store(sums, Simd::reduce_each(sum), shape.score_scale);
    for (int t = 0; t < kTokens; ++t)
      std::memcpy(scores + t * shape.padded_rows, sums + t * kTailRows, sizeof(float) * kTailRows);
  }

  static void score(const ItemShape& shape, const Scratch& scratch, const Element* const* keys, int padded_keys) {
    const int vectors = vector_rows(shape);
    const auto* queries = static_cast<const Query*>(scratch.queries);
    constexpr int kWide = Score::kVecs * Score::kLanes;
    int row = 0;
    for (; row + kWide <= vectors; row += kWide) {
      for (int t = 0; t < padded_keys; t += Score::kTokens) {
        score_tile<Score::kVecs>(shape, queries + row, vectors, keys + t, scratch.scores + t * shape.padded_rows + row);
      }
    }
    for (; row < vectors; row += Score::kLanes) {
      for (int t = 0; t < padded_keys; t += Score::kTokens) {
        score_tile<1>(shape, queries + row, vectors, keys + t, scratch.scores + t * shape.padded_rows + row);
      }
    }
    if constexpr (Score::kRemainder) {
      constexpr int kTokens = Score::kLanes / kTailRows;
      const Element* rest = remainder_queries(shape, scratch);
      for (row = vectors; row < shape.rows; row += kTailRows) {
        for (int t = 0; t < padded_keys; t += kTokens) {
          score_remainder(shape, rest + static_cast<int64_t>(row - vectors) * shape.padded_dim, keys + t,
                          scratch.scores + t * shape.padded_rows + row);
        }
      }
    }
  }

  // --- soft-max: scores -> weights, running m and l, and what o is rescaled by
  // ------------------------------------------

  static F32 masked_score(const Scratch& scratch, const ItemShape& shape, int t, int row, bool mask) {
    const F32 s = Simd::load(scratch.scores + t * shape.padded_rows + row);
    return mask ? Simd::select_below(t, scratch.visible + row, s, Simd::set1(-__builtin_inff())) : s;
  }

  static void softmax(const ItemShape& shape, const Scratch& scratch, int padded_keys, bool mask, bool fresh,
                      const Partial& partial) {
    const F32 minus_inf = Simd::set1(-__builtin_inff());
    auto* weights = static_cast<Weight*>(scratch.weights);
    for (int row = 0; row < shape.padded_rows; row += Simd::kLanes) {
      const F32 old_m = fresh ? minus_inf : Simd::load(partial.m + row);
      F32 m = old_m;
      for (int t = 0; t < padded_keys; ++t) m = Simd::max(masked_score(scratch, shape, t, row, mask), m);
      // While a row has seen no score above -inf, subtract 0 in place of -inf - -inf.
      const F32 base = Simd::select_less(minus_inf, m, m, Simd::zero());
      F32 sum = Simd::zero();
      for (int t = 0; t < padded_keys; t += Value::kPack) {
        F32 p[Value::kPack];
        for (int i = 0; i < Value::kPack; ++i) {
          p[i] = exp2_nonpositive<Simd>(Simd::sub(masked_score(scratch, shape, t + i, row, mask), base));
          sum = Simd::add(sum, p[i]);
        }
        Value::store_weights(weights + t / Value::kPack * shape.padded_rows + row, p);
      }
      const F32 rescale = exp2_nonpositive<Simd>(Simd::sub(old_m, base));
      const F32 old_l = fresh ? Simd::zero() : Simd::load(partial.l + row);
      Simd::store(scratch.rescale + row, rescale);
      Simd::store(partial.m + row, m);
      Simd::store(partial.l + row, Simd::fma(old_l, rescale, sum));
    }
  }

  // --- o += p v
  // ---------------------------------------------------------------------------------------------------------

  template <int kRows>
  static void accumulate_tile(const ItemShape& shape, const Weight* weights, const float* rescale,
                              const Element* const* keys, int padded_keys, int64_t column, bool fresh, float* o) {
    F32 sum[kRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < 2; ++v) {
        const float* from = o + r * shape.out_stride + v * Simd::kLanes;
        sum[r][v] = fresh ? Simd::zero() : Simd::mul(Simd::load(from), Simd::set1(rescale[r]));
      }
    }
    for (int t = 0; t < padded_keys; t += Value::kPack) {
      typename Value::Vec v[2];
      Value::load(keys + t, column, v);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const auto p = Value::broadcast(weights + r);
        sum[r][0] = Value::dot(sum[r][0], v[0], p);
        sum[r][1] = Value::dot(sum[r][1], v[1], p);
      }
      weights += shape.padded_rows;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < 2; ++i) Simd::store(o + r * shape.out_stride + i * Simd::kLanes, sum[r][i]);
    }
  }

  // The largest tile of kPvRows, kPvRows / 2 .. 1 rows that fits; returns its rows.
  template <int kRows>
  static int accumulate_rows(const ItemShape& shape, const Weight* weights, const float* rescale,
                             const Element* const* keys, int padded_keys, int64_t column, bool fresh, float* o,
                             int rows) {
    if constexpr (kRows > 1) {
      if (rows < kRows) {
        return accumulate_rows<kRows / 2>(shape, weights, rescale, keys, padded_keys, column, fresh, o, rows);
      }
    }
    accumulate_tile<kRows>(shape, weights, rescale, keys, padded_keys, column, fresh, o);
    return kRows;
  }

  static void accumulate(const ItemShape& shape, const Scratch& scratch, const Element* const* keys, int padded_keys,
                         bool fresh, const Partial& partial) {
    const auto* weights = static_cast<const Weight*>(scratch.weights);
    for (int64_t column = 0; column < shape.out_stride; column += Value::kColumns) {
      for (int row = 0; row < shape.rows;) {
        row += accumulate_rows<Simd::kPvRows>(shape, weights + row, scratch.rescale + row, keys, padded_keys, column,
                                              fresh, partial.o + static_cast<int64_t>(row) * shape.out_stride + column,
                                              shape.rows - row);
      }
    }
  }

  // --- one block
  // --------------------------------------------------------------------------------------------------------

  // visible[] of the block, padded rows included; whether any row misses one of the block's keys.
  static bool set_visible(const ItemShape& shape, const Scratch& scratch, const int64_t* visible, int64_t first,
                          int count, int padded_keys) {
    bool mask = count != padded_keys;
    for (int r = 0; r < shape.padded_rows; ++r) {
      const int64_t sees = (r < shape.rows ? visible[r] : first + count) - first;
      scratch.visible[r] = sees < 0 ? 0 : sees < count ? static_cast<int32_t>(sees) : count;
      mask = mask || scratch.visible[r] < count;
    }
    return mask;
  }

  static void attend(const ItemShape& shape, const Scratch& scratch, const KeyRows& source, int64_t first,
                     int32_t count, const int64_t* visible, bool fresh, const Partial& partial) {
    const Element* keys[kBlockKeys];
    Source::gather(shape, scratch, source, first, count, keys);
    constexpr int kGroup = 8;  // a multiple of every policy's kTokens and kPack
    const int padded_keys = (count + kGroup - 1) / kGroup * kGroup;
    for (int t = count; t < padded_keys; ++t) keys[t] = Source::zero_row(shape, scratch);
    score(shape, scratch, keys, padded_keys);
    const bool mask = set_visible(shape, scratch, visible, first, count, padded_keys);
    softmax(shape, scratch, padded_keys, mask, fresh, partial);
    accumulate(shape, scratch, keys, padded_keys, fresh, partial);
  }

  static constexpr DecodeKernel table(const char* name) { return {name, load_queries, attend}; }
};

// Calls visit(token in block, address) for `count` keys from `first`.
template <class Visit>
void for_each_key(const KeyRows& keys, int64_t first, int32_t count, const Visit& visit) {
  int64_t page = first / keys.page_size;
  int64_t place = first % keys.page_size;
  for (int t = 0; t < count;) {
    const std::byte* row = keys.base + keys.table[page] * keys.page_stride + place * keys.token_stride;
    for (; place < keys.page_size && t < count; ++place, ++t, row += keys.token_stride) visit(t, row);
    place = 0;
    ++page;
  }
}

// Source of key rows: widened to fp32 in scratch, zero past d_qk.
template <class Simd>
struct WidenedRows {
  static bool key_reads_fit(const ItemShape&, int) { return true; }
  static float* zero_row(const ItemShape& shape, const Scratch& scratch) {
    return reinterpret_cast<float*>(scratch.rows) + static_cast<int64_t>(kBlockKeys) * shape.padded_dim;
  }
  static void widen(float* to, const std::byte* from, int width, DType dtype) {
    const auto* half = reinterpret_cast<const uint16_t*>(from);
    switch (dtype) {
      case DType::kBFloat16:
        for (int d = 0; d < width; d += 8) Simd::widen8_bf16(to + d, half + d);
        break;
      case DType::kFloat16:
        for (int d = 0; d < width; d += 8) Simd::widen8_fp16(to + d, half + d);
        break;
      default: std::memcpy(to, from, static_cast<size_t>(width) * sizeof(float)); break;
    }
  }
  static void gather(const ItemShape& shape, const Scratch& scratch, const KeyRows& source, int64_t first,
                     int32_t count, const float** keys) {
    const int width = shape.latent_dim + shape.rope_dim;
    for_each_key(source, first, count, [&](int t, const std::byte* from) {
      float* to = reinterpret_cast<float*>(scratch.rows) + static_cast<int64_t>(t) * shape.padded_dim;
      widen(to, from, width, shape.dtype);
      std::memset(to + width, 0, static_cast<size_t>(shape.padded_dim - width) * sizeof(float));
      keys[t] = to;
    });
  }
};

template <class Simd>
using F32Kernel = BlockKernel<Simd, ScoreF32<Simd>, ValueF32<Simd>, WidenedRows<Simd>>;
template <class Simd>
using F64ScoreKernel = BlockKernel<Simd, ScoreF64<Simd>, ValueF32<Simd>, WidenedRows<Simd>>;

}  // namespace flashmla
