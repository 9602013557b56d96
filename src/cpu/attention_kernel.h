// The attention kernel of the "cpu" back end, written once against the vector interface (simd_*.h) and two small
// policies:
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

#include "cpu/attention_item.h"

namespace flashmla {

// Score policy: fp32 keys and queries, double products and sums. A row's lse may be near 0 with large terms that cancel
// in its scores; fp32 sums then cost more than the 1e-6 + 1.2e-4 |lse| (fp32: 1e-6 |lse|) by which it may differ.
template <class Simd>
struct ScoreF64 {
  using Key = float;
  using WideKey = double;  // keys are widened a stretch at a time, once for all rows of a tile
  using Query = double;
  using Vec = typename Simd::F64;
  using Sum = typename Simd::F64;
  static constexpr int kLanes = Simd::kLanes64;
  static constexpr int kPack = 1;
  static constexpr int kVecs = 2;
  static constexpr int kTokens = Simd::kScoreTokens64;
  static constexpr bool kRemainder = false;
  static constexpr bool kWidens = true;

  static Sum zero() { return Simd::zero64(); }
  static Vec load(const Query* q) { return Simd::load64(q); }
  static Vec broadcast(const WideKey* k) { return Simd::set64(*k); }
  static Sum dot(Sum sum, Vec q, Vec k) { return Simd::fma64(q, k, sum); }
  static void store(float* to, Sum sum, double scale) { Simd::store_scaled64(to, sum, scale); }
  static Query pack_query(const float* q) { return static_cast<double>(*q); }
  // `count` elements; up to 7 more are read, and written.
  static void widen(WideKey* to, const Key* from, int64_t count) {
    for (int64_t d = 0; d < count; d += 8) Simd::widen8_fp32(to + d, from + d);
  }
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

// The rows of the next block, fetched into the L2 cache while this block's values are multiplied: the rows of a paged
// cache are too short for the hardware prefetcher to run ahead in. A tile asks for a few lines in each of its steps: in
// bursts the requests wait for the core's line buffers, and the arithmetic with them.
struct NextRows {
  static constexpr int64_t kLine = 64;

  const std::byte* row[kBlockKeys];
  int64_t lines = 0;  // of a row; 0: no next block
  int64_t tiles = 1;  // that share the lines out
  int64_t tile = 0;
  int64_t offset = 0;  // of the line that the present tile fetches; negative: none

  // Rows past the next block repeat its first one: fetching that again is free.
  void find(const KeyRows& keys, const Block& block, int64_t row_bytes, int64_t tile_count) {
    if (block.ahead == 0) return;
    lines = (row_bytes + kLine - 1) / kLine;
    tiles = tile_count;
    for_each_key(keys, block.first + block.count, block.ahead, [this](int t, const std::byte* at) { row[t] = at; });
    for (int t = block.ahead; t < kBlockKeys; ++t) row[t] = row[0];
  }
  void next_tile() {
    int64_t line = lines * tile / tiles;
    const int64_t end = lines * ++tile / tiles;
    offset = line < end ? line * kLine : -1;
    for (++line; line < end; ++line) {  // more lines than tiles: the surplus in bursts after all
      for (const std::byte* at : row) __builtin_prefetch(at + line * kLine, 0, 2);
    }
  }
  void fetch(int t) const {
    if (offset >= 0) __builtin_prefetch(row[t] + offset, 0, 2);
  }
};

template <class Simd, class Score, class Value, class Source>
struct BlockKernel {
  using F32 = typename Simd::F32;
  using Element = typename Value::Element;  // of a key row as both policies read it
  using Query = typename Score::Query;
  using Weight = typename Value::Weight;
  static constexpr int kTailRows = 4;  // rows of a remainder group

  // Rows scored with lanes along rows; the others, at most 12, with lanes along the key.
  static int vector_rows(const ItemShape& shape) {
    if (!Score::kRemainder) return static_cast<int>((shape.rows + Score::kLanes - 1) / Score::kLanes * Score::kLanes);
    const int rest = shape.rows % kRowPad;
    const bool by_key = rest <= 12 && Source::key_reads_fit(shape, Score::kPack * Score::kLanes);
    return by_key ? shape.rows - rest : shape.padded_rows;
  }

  // --- layouts. Rows come in groups of kRowPad, so that what one tile reads is contiguous. ---

  // scores: [group][kBlockKeys][kRowPad]
  static float* score_at(const Scratch& scratch, int t, int row) {
    return scratch.scores + (row / kRowPad * kBlockKeys + t) * kRowPad + row % kRowPad;
  }
  // weights: [group][kBlockKeys / kPack][kRowPad]
  static Weight* weight_at(const Scratch& scratch, int step, int row) {
    constexpr int kSteps = kBlockKeys / Value::kPack;
    return static_cast<Weight*>(scratch.weights) + (row / kRowPad * kSteps + step) * kRowPad + row % kRowPad;
  }
  // queries: [group][d / kPack][kRowPad] Query, then [remainder rows][padded_dim] Element
  static int64_t steps(const ItemShape& shape) { return shape.qk_dim() / Score::kPack; }
  static Query* query_at(const ItemShape& shape, const Scratch& scratch, int64_t step, int row) {
    return static_cast<Query*>(scratch.queries) + (row / kRowPad * steps(shape) + step) * kRowPad + row % kRowPad;
  }

  // --- queries ---

  static Element* zero_row(const Scratch& scratch) { return reinterpret_cast<Element*>(scratch.rows); }

  static Element* remainder_queries(const ItemShape& shape, const Scratch& scratch) {
    return reinterpret_cast<Element*>(static_cast<Query*>(scratch.queries) + steps(shape) * vector_rows(shape));
  }

  static void load_queries(const ItemShape& shape, const Scratch& scratch, const std::byte* const* first,
                           const std::byte* const* second) {
    const int vectors = vector_rows(shape);
    Element* row = zero_row(scratch);  // free until the keys come: one query, widened
    Element* remainder = remainder_queries(shape, scratch);
    for (int r = 0; r < shape.padded_rows; ++r) {
      if (r >= vectors && r >= (shape.rows + kTailRows - 1) / kTailRows * kTailRows) break;
      std::memset(row, 0, static_cast<size_t>(shape.padded_dim) * sizeof(Element));
      if (r < shape.rows) {
        Source::widen(row, first[r], shape.first_dim, shape.dtype);
        Source::widen(row + shape.first_dim, second[r], shape.second_dim, shape.dtype);
      }
      if (r >= vectors) {
        std::memcpy(remainder + static_cast<int64_t>(r - vectors) * shape.padded_dim, row,
                    static_cast<size_t>(shape.padded_dim) * sizeof(Element));
        continue;
      }
      for (int64_t d = 0; d < steps(shape); ++d) {
        *query_at(shape, scratch, d, r) = Score::pack_query(row + d * Score::kPack);
      }
    }
    std::memset(row, 0, static_cast<size_t>(shape.padded_dim) * sizeof(Element));
  }

  // --- scores ---

  // kVecs vectors of rows from `row` against kTokens keys from `t`.
  template <int kVecs>
  static void score_tile(const ItemShape& shape, const Scratch& scratch, const Element* const* keys, int t, int row) {
    constexpr int kTokens = Score::kTokens;
    typename Score::Sum sum[kTokens][kVecs];
    for (auto& token : sum) {
      for (auto& part : token) part = Score::zero();
    }
    const typename Score::Key* key[kTokens];
    for (int i = 0; i < kTokens; ++i) key[i] = reinterpret_cast<const typename Score::Key*>(keys[t + i]);
    const Query* query[kVecs];
    for (int v = 0; v < kVecs; ++v) query[v] = query_at(shape, scratch, 0, row + v * Score::kLanes);
    // Steps [begin, begin + count) of the key; from[i]: token i's elements from step `begin` on.
    const auto add = [&](const auto* const* from, int64_t begin, int64_t count) {
      for (int64_t d = 0; d < count; ++d) {
        typename Score::Vec q[kVecs];
        for (int v = 0; v < kVecs; ++v) q[v] = Score::load(query[v] + (begin + d) * kRowPad);
#pragma GCC unroll 8
        for (int i = 0; i < kTokens; ++i) {
          const auto k = Score::broadcast(from[i] + d);
#pragma GCC unroll 2
          for (int v = 0; v < kVecs; ++v) sum[i][v] = Score::dot(sum[i][v], q[v], k);
        }
      }
    };
    const int64_t count = steps(shape);
    if constexpr (Score::kWidens) {
      constexpr int64_t kStretch = 128;  // elements: 8 keys are 8 KB, a quarter of an L1 cache
      alignas(64) typename Score::WideKey wide[kTokens][kStretch];
      const typename Score::WideKey* from[kTokens];
      for (int i = 0; i < kTokens; ++i) from[i] = wide[i];
      for (int64_t begin = 0; begin < count; begin += kStretch) {
        const int64_t stretch = count - begin < kStretch ? count - begin : kStretch;
        for (int i = 0; i < kTokens; ++i) Score::widen(wide[i], key[i] + begin, stretch);
        add(from, begin, stretch);
      }
    } else {
      add(key, 0, count);
    }
    for (int i = 0; i < kTokens; ++i) {
      for (int v = 0; v < kVecs; ++v) {
        Score::store(score_at(scratch, t + i, row + v * Score::kLanes), sum[i][v], shape.score_scale);
      }
    }
  }

  // kTailRows rows from `row` against kLanes / kTailRows keys from `t`; lanes run along the key and are summed at the
  // end.
  static void score_remainder(const ItemShape& shape, const Scratch& scratch, const Element* const* keys, int t,
                              int row) {
    const Element* queries =
        remainder_queries(shape, scratch) + static_cast<int64_t>(row - vector_rows(shape)) * shape.padded_dim;
    constexpr int kTokens = Score::kLanes / kTailRows;
    typename Score::Sum sum[kTokens * kTailRows];
    for (auto& part : sum) part = Score::zero();
    const int width = shape.qk_dim();  // rounded up to whole vectors: zeros, or nothing to round
    const auto as_vec = [](const Element* p) { return Score::load(reinterpret_cast<const typename Score::Query*>(p)); };
    for (int d = 0; d < width; d += Score::kPack * Score::kLanes) {
      typename Score::Vec q[kTailRows];
#pragma GCC unroll 4
      for (int r = 0; r < kTailRows; ++r) q[r] = as_vec(queries + static_cast<int64_t>(r) * shape.padded_dim + d);
#pragma GCC unroll 4
      for (int i = 0; i < kTokens; ++i) {
        const auto k = as_vec(keys[t + i] + d);
#pragma GCC unroll 4
        for (int r = 0; r < kTailRows; ++r) sum[i * kTailRows + r] = Score::dot(sum[i * kTailRows + r], q[r], k);
      }
    }
    float sums[Score::kLanes];
    Score::store(sums, Simd::reduce_each(sum), shape.score_scale);
    for (int i = 0; i < kTokens; ++i) {
      std::memcpy(score_at(scratch, t + i, row), sums + i * kTailRows, sizeof(float) * kTailRows);
    }
  }

  static void score(const ItemShape& shape, const Scratch& scratch, const Element* const* keys, int padded_keys) {
    const int vectors = vector_rows(shape);
    constexpr int kWide = Score::kVecs * Score::kLanes;
    int row = 0;
    for (; row + kWide <= vectors; row += kWide) {
      for (int t = 0; t < padded_keys; t += Score::kTokens) score_tile<Score::kVecs>(shape, scratch, keys, t, row);
    }
    for (; row < vectors; row += Score::kLanes) {
      for (int t = 0; t < padded_keys; t += Score::kTokens) score_tile<1>(shape, scratch, keys, t, row);
    }
    if constexpr (Score::kRemainder) {
      for (row = vectors; row < shape.rows; row += kTailRows) {
        for (int t = 0; t < padded_keys; t += Score::kLanes / kTailRows) score_remainder(shape, scratch, keys, t, row);
      }
    }
  }

  // --- soft-max: scores -> weights, running m and l, and what o is rescaled by ---

  static F32 masked_score(const Scratch& scratch, int t, int row, bool mask) {
    const F32 s = Simd::load(score_at(scratch, t, row));
    return mask ? Simd::select_below(t, scratch.visible + row, s, Simd::set1(-__builtin_inff())) : s;
  }

  static void softmax(const ItemShape& shape, const Scratch& scratch, int padded_keys, bool mask, bool fresh,
                      const Partial& partial) {
    const F32 minus_inf = Simd::set1(-__builtin_inff());
    for (int row = 0; row < shape.padded_rows; row += Simd::kLanes) {
      const F32 old_m = fresh ? minus_inf : Simd::load(partial.m + row);
      F32 m = old_m;
      for (int t = 0; t < padded_keys; ++t) m = Simd::max(masked_score(scratch, t, row, mask), m);
      // While a row has seen no score above -inf, subtract 0 in place of -inf - -inf.
      const F32 base = Simd::select_less(minus_inf, m, m, Simd::zero());
      F32 sum = Simd::zero();
      for (int t = 0; t < padded_keys; t += Value::kPack) {
        F32 p[Value::kPack];
        for (int i = 0; i < Value::kPack; ++i) {
          p[i] = exp2_nonpositive<Simd>(Simd::sub(masked_score(scratch, t + i, row, mask), base));
          sum = Simd::add(sum, p[i]);
        }
        Value::store_weights(weight_at(scratch, t / Value::kPack, row), p);
      }
      const F32 rescale = exp2_nonpositive<Simd>(Simd::sub(old_m, base));
      const F32 old_l = fresh ? Simd::zero() : Simd::load(partial.l + row);
      Simd::store(scratch.rescale + row, rescale);
      Simd::store(partial.m + row, m);
      Simd::store(partial.l + row, Simd::fma(old_l, rescale, sum));
    }
  }

  // --- o += p v ---

  // What every tile of a block needs.
  struct ValueBlock {
    const Element* const* rows;
    int padded_keys;
    bool fresh;
    const Partial& partial;
    NextRows next{};
  };

  // kRows query rows from `row` by kColumns columns from `column`.
  template <int kRows>
  static void accumulate_tile(const ItemShape& shape, const Scratch& scratch, ValueBlock& block, int row,
                              int64_t column) {
    float* o = block.partial.o + static_cast<int64_t>(row) * shape.out_stride + column;
    F32 sum[kRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < 2; ++v) {
        const float* from = o + r * shape.out_stride + v * Simd::kLanes;
        sum[r][v] = block.fresh ? Simd::zero() : Simd::mul(Simd::load(from), Simd::set1(scratch.rescale[row + r]));
      }
    }
    block.next.next_tile();
    const Weight* weights = weight_at(scratch, 0, row);
    for (int t = 0; t < block.padded_keys; t += Value::kPack) {
      for (int i = 0; i < Value::kPack; ++i) block.next.fetch(t + i);
      typename Value::Vec v[2];
      Value::load(block.rows + t, column, v);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const auto p = Value::broadcast(weights + r);
        sum[r][0] = Value::dot(sum[r][0], v[0], p);
        sum[r][1] = Value::dot(sum[r][1], v[1], p);
      }
      weights += kRowPad;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < 2; ++i) Simd::store(o + r * shape.out_stride + i * Simd::kLanes, sum[r][i]);
    }
  }

  // The largest tile of kPvRows, kPvRows / 2 .. 1 rows that fits; returns its rows.
  template <int kRows>
  static int accumulate_rows(const ItemShape& shape, const Scratch& scratch, ValueBlock& block, int row,
                             int64_t column) {
    if constexpr (kRows > 1) {
      if (shape.rows - row < kRows) return accumulate_rows<kRows / 2>(shape, scratch, block, row, column);
    }
    accumulate_tile<kRows>(shape, scratch, block, row, column);
    return kRows;
  }

  static void accumulate(const ItemShape& shape, const Scratch& scratch, ValueBlock& block) {
    for (int64_t column = 0; column < shape.out_stride; column += Value::kColumns) {
      for (int row = 0; row < shape.rows;) {
        row += accumulate_rows<Simd::kPvRows>(shape, scratch, block, row, column);
      }
    }
  }
  // Tiles that accumulate() runs at least.
  static int64_t tiles(const ItemShape& shape) {
    return (shape.out_stride / Value::kColumns) * ((shape.rows + Simd::kPvRows - 1) / Simd::kPvRows);
  }

  // --- one block ---

  // visible[] of the block, padded rows included; whether any row misses one of the block's keys.
  static bool set_visible(const ItemShape& shape, const Scratch& scratch, const int64_t* visible, const Block& block,
                          int padded_keys) {
    const int count = block.count;
    bool mask = count != padded_keys;
    for (int r = 0; r < shape.padded_rows; ++r) {
      const int64_t sees = (r < shape.rows ? visible[r] : block.first + count) - block.first;
      scratch.visible[r] = sees < 0 ? 0 : sees < count ? static_cast<int32_t>(sees) : count;
      mask = mask || scratch.visible[r] < count;
    }
    return mask;
  }

  static void attend(const ItemShape& shape, const Scratch& scratch, const KeyRows& key_rows, const KeyRows& value_rows,
                     const Block& block, const int64_t* visible, const Partial& partial) {
    const bool own_values = value_rows.base != nullptr;
    const Element* keys[kBlockKeys];
    const Element* own[kBlockKeys];
    Element* copies = zero_row(scratch) + shape.padded_dim;
    // A key row is also read as a value row in MLA, in whole vectors of columns.
    Source::gather(shape, key_rows, block, shape.qk_dim(), own_values ? 0 : shape.out_stride, copies, keys);
    if (own_values) {
      copies += static_cast<int64_t>(kBlockKeys) * shape.padded_dim;
      Source::gather(shape, value_rows, block, shape.value_dim, shape.out_stride, copies, own);
    }
    const Element** values = own_values ? own : keys;
    constexpr int kGroup = 8;  // a multiple of every policy's kTokens and kPack
    const int padded_keys = (block.count + kGroup - 1) / kGroup * kGroup;
    for (int t = block.count; t < padded_keys; ++t) keys[t] = values[t] = zero_row(scratch);

    score(shape, scratch, keys, padded_keys);
    const bool mask = set_visible(shape, scratch, visible, block, padded_keys);
    softmax(shape, scratch, padded_keys, mask, block.fresh, partial);
    ValueBlock value_block{values, padded_keys, block.fresh, partial};
    value_block.next.find(key_rows, block, shape.qk_dim() * Source::element_bytes(shape.dtype), tiles(shape));
    accumulate(shape, scratch, value_block);
  }

  static constexpr AttentionKernel table(const char* name, const AttentionKernel* few_keys = nullptr) {
    return {name, load_queries, attend, few_keys};
  }
};

// Source of key rows: widened to fp32 in scratch, zero past d_qk.
template <class Simd>
struct WidenedRows {
  static int64_t element_bytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }
  static bool key_reads_fit(const ItemShape&, int) { return true; }
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
  // Rows of `width` elements, copied to `copies` (stride padded_dim) and read up to `read` elements; rows[t] points at
  // each.
  static void gather(const ItemShape& shape, const KeyRows& source, const Block& block, int width, int, float* copies,
                     const float** rows) {
    for_each_key(source, block.first, block.count, [&](int t, const std::byte* from) {
      float* to = copies + static_cast<int64_t>(t) * shape.padded_dim;
      widen(to, from, width, shape.dtype);
      std::memset(to + width, 0, static_cast<size_t>(shape.padded_dim - width) * sizeof(float));
      rows[t] = to;
    });
  }
};

template <class Simd>
using WideKernel = BlockKernel<Simd, ScoreF64<Simd>, ValueF32<Simd>, WidenedRows<Simd>>;

}  // namespace flashmla
