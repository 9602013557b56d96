// The loops of linear_kernel.h over an instruction set's arithmetic. Lanes run along the columns: W's rows need no
// packing, any number of tokens fills the vectors, and every (row, token) has one accumulator, so that its sum is
// formed in the same order whatever the number of tokens:
//
//   for each block of columns: lane l sums columns l, l + lanes, ... in turn; the lanes are added up (sum_lanes);
//   the block's sum is added to the row's.
//
// `Math`: one kind of multiply-add (fp32, or bf16 pairs). Included by one file for each instruction set, whose Math is
// in an anonymous namespace: each file's copies are its own, so that no code compiled for a wider instruction set is
// ever linked into a narrower one.
#pragma once

#include "runner/linear/linear_kernel.h"

namespace flashmla::runner {

typedef float Four __attribute__((vector_size(16)));  // one token's sums of a tile's four rows

constexpr int kPrefetchLevel = 2;             // into L2
constexpr int64_t kNextTileBytes = 12 << 10;  // stays in L1 beside the tile in work
// Packed activations of this size stay in the L2 cache while W streams through.
constexpr int64_t kResidentBytes = int64_t{512} << 10;

#define FLASHMLA_INLINE __attribute__((always_inline)) static inline
#define FLASHMLA_MEMBER __attribute__((always_inline)) inline

template <class Math>
struct Tile {
  using X = typename Math::X;      // packed or plain activations
  using Vec = typename Math::Vec;  // kStep weights
  using Acc = typename Math::Acc;
  static constexpr int64_t kStep = Math::kStep;
  static constexpr int64_t kBlock = Math::kBlock;  // columns, a multiple of kStep
  static constexpr int64_t kTokens = Math::kTileTokens;
  static constexpr int kRows = kTileRows;

  static constexpr int64_t padded(int64_t cols) { return (cols + kStep - 1) / kStep * kStep; }
  static constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

  static int64_t token_tiles(int64_t tokens) { return (tokens + kTokens - 1) / kTokens; }
  // First token of tile i: sizes differ by at most one.
  static int64_t tile_begin(int64_t tokens, int64_t i) {
    const int64_t tiles = token_tiles(tokens);
    return i * (tokens / tiles) + least(i, tokens % tiles);
  }

  // The activations of a tile in one block of columns.
  struct Activations {
    const X* x;  // token t: x + t * stride
    int64_t stride;
    int64_t step;              // from one vector of a token to its next
    const X* extra = nullptr;  // packed: token t's Math::kExtra elements at extra + t * kExtra
  };

  // What to fetch while a tile is multiplied: four lines for each line of its rows, in the order of memory. Loads keep
  // the hardware's own prefetcher running, which goes further ahead, but they hold up loops of many instructions a line
  // and need the next tile to stay in L1. Prefetch instructions do neither.
  enum class Fetch { kNone, kLoad, kPrefetch };
  struct Ahead {
    const char* next = nullptr;
    int64_t apart = 0;    // bytes between the four
    int64_t advance = 0;  // bytes
    bool short_rows = false;
    template <bool kLoad>
    FLASHMLA_MEMBER void fetch() {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        if constexpr (kLoad)
          (void)*static_cast<const volatile char*>(next + i * apart);
        else
          __builtin_prefetch(next + i * apart, 0, kPrefetchLevel);
      }
      next += advance;
    }
  };
  // The tile after the one from `row`; one line again and again where there are not as many rows left.
  template <class W>
  static Ahead next_tile(const WeightRows& w, int64_t row) {
    const int64_t tile_bytes = kRows * w.cols * static_cast<int64_t>(sizeof(W));
    const int64_t next = row + kRows;
    if (next + kRows > w.rows) return {static_cast<const char*>(w.data), 0, 0};
    return {static_cast<const char*>(w.data) + next * w.cols * static_cast<int64_t>(sizeof(W)), 64, 256,
            tile_bytes <= kNextTileBytes};
  }

  // Sums over `cols` columns of one block: four rows of W against T tokens. Packed activations come in whole vectors.
  template <int T, bool kPacked, Fetch kFetch, class W>
  FLASHMLA_INLINE void run(const W* const (&row)[kRows], Ahead& ahead, Activations in, int64_t cols, Four (&sums)[T]) {
    constexpr int64_t kLineSteps = 64 / (kStep * static_cast<int64_t>(sizeof(W)));  // steps in a cache line of W
    static_assert(kLineSteps >= 1);
    Acc acc[T][kRows];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[t][r] = Math::start(in.extra + t * Math::kExtra);
    }
    const auto multiply = [&](const Vec(&w)[kRows], const auto& load_x) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const auto x = load_x(in.x + t * in.stride);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) acc[t][r] = Math::dot(acc[t][r], w[r], x);
      }
      in.x += in.step;
    };
    const auto whole_step = [&](int64_t c) __attribute__((always_inline)) {
      Vec w[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) w[r] = Math::load(row[r] + c);
      multiply(w, [](const X* at) { return Math::load_x(at); });
    };
    int64_t c = 0;
    for (; c + kLineSteps * kStep <= cols; c += kLineSteps * kStep) {
      if constexpr (kFetch != Fetch::kNone) ahead.template fetch<kFetch == Fetch::kLoad>();
#pragma GCC unroll 4
      for (int64_t i = 0; i < kLineSteps; ++i) whole_step(c + i * kStep);
    }
    if constexpr (kLineSteps > 1) {
      for (; c + kStep <= cols; c += kStep) whole_step(c);
    }
    if (const int rest = static_cast<int>(cols - c); rest > 0) {
      Vec w[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) w[r] = Math::load_part(row[r] + c, rest);
      if constexpr (kPacked) {
        multiply(w, [](const X* at) { return Math::load_x(at); });
      } else {
        multiply(w, [rest](const X* at) { return Math::load_part(at, rest); });
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sums[t] = Math::sum_lanes(acc[t], in.extra + t * Math::kExtra);
  }

  struct Output {
    float* y;  // of the tile's first row and token
    int64_t y_stride;
    const float* scale;  // of the tile's rows, or null
    int rows;            // valid, 1 .. kRows
    bool fresh;          // nothing in y yet
    bool last;           // scale now
  };
  FLASHMLA_INLINE void store(const Output& out, int t, Four sum) {
    float* y = out.y + t * out.y_stride;
    if (out.rows == kRows) {
      Four before;
      if (!out.fresh) {
        __builtin_memcpy(&before, y, sizeof(before));
        sum = before + sum;
      }
      if (out.last && out.scale != nullptr) {
        Four scale;
        __builtin_memcpy(&scale, out.scale, sizeof(scale));
        sum *= scale;
      }
      __builtin_memcpy(y, &sum, sizeof(sum));
      return;
    }
    for (int r = 0; r < out.rows; ++r) {
      float value = out.fresh ? sum[r] : y[r] + sum[r];
      if (out.last && out.scale != nullptr) value *= out.scale[r];
      y[r] = value;
    }
  }

  template <int T, bool kPacked, Fetch kFetch, class W>
  static void tile(const W* const (&row)[kRows], Ahead& ahead, const Activations& in, int64_t cols, const Output& out) {
    Four sums[T];
    run<T, kPacked, kFetch>(row, ahead, in, cols, sums);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) store(out, t, sums[t]);
  }

  template <int T, bool kPacked, class W>
  static void fetching_tile(const W* const (&row)[kRows], Ahead* ahead, const Activations& in, int64_t cols,
                            const Output& out) {
    Ahead none;
    if (ahead == nullptr) return tile<T, kPacked, Fetch::kNone>(row, none, in, cols, out);
    if constexpr (T <= Math::kLoadAheadTokens) {
      if (ahead->short_rows) return tile<T, kPacked, Fetch::kLoad>(row, *ahead, in, cols, out);
    }
    tile<T, kPacked, Fetch::kPrefetch>(row, *ahead, in, cols, out);
  }

  // `ahead`: null to fetch nothing.
  template <bool kPacked, class W>
  static void tile_of(int64_t tokens, const W* const (&row)[kRows], Ahead* ahead, const Activations& in, int64_t cols,
                      const Output& out) {
    static_assert(kTokens <= 6);
    switch (tokens) {
      case 1: return fetching_tile<1, kPacked>(row, ahead, in, cols, out);
      case 2: return fetching_tile<2, kPacked>(row, ahead, in, cols, out);
      case 3: return fetching_tile<least(3, kTokens), kPacked>(row, ahead, in, cols, out);
      case 4: return fetching_tile<least(4, kTokens), kPacked>(row, ahead, in, cols, out);
      case 5: return fetching_tile<least(5, kTokens), kPacked>(row, ahead, in, cols, out);
      default: return fetching_tile<kTokens, kPacked>(row, ahead, in, cols, out);
    }
  }

  // Addresses of a tile's rows; those past `last` repeat the last one, their sums are dropped.
  template <class W>
  FLASHMLA_INLINE void tile_rows(const W* first_row, int64_t stride, int rows, const W* (&row)[kRows]) {
    for (int r = 0; r < kRows; ++r) row[r] = first_row + (r < rows ? r : rows - 1) * stride;
  }

  static void zero(int64_t first, int64_t last, int64_t tokens, float* y, int64_t y_stride) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t r = first; r < last; ++r) y[t * y_stride + r] = 0.0f;
    }
  }

  // FewKernel.
  template <class W>
  static void few(const WeightRows& w, int64_t first, int64_t last, const float* x, int64_t x_stride, int64_t tokens,
                  float* y, int64_t y_stride) {
    if (w.cols == 0) return zero(first, last, tokens, y, y_stride);
    const W* data = static_cast<const W*>(w.data);
    for (int64_t r = first; r < last; r += kRows) {
      const int rows = static_cast<int>(least(kRows, last - r));
      Ahead ahead = next_tile<W>(w, r);
      for (int64_t c = 0; c < w.cols; c += kBlock) {
        const int64_t cols = least(kBlock, w.cols - c);
        const W* row[kRows];
        tile_rows(data + r * w.cols + c, w.cols, rows, row);
        const float* scale = w.row_scale == nullptr ? nullptr : w.row_scale + r;
        for (int64_t i = 0; i < token_tiles(tokens); ++i) {
          const int64_t t = tile_begin(tokens, i);
          tile_of<false>(tile_begin(tokens, i + 1) - t, row, i == 0 ? &ahead : nullptr,
                         {x + t * x_stride + c, x_stride, kStep}, cols,
                         {y + t * y_stride + r, y_stride, scale, rows, c == 0, c + cols == w.cols});
        }
      }
    }
  }

  // --- many tokens ---

  // Packed: [block][token tile]{[step][token of the tile][kStep], [token of the tile][kExtra]}, zeros past the last
  // column.
  static int64_t packed_at(int64_t tokens, int64_t cols, int64_t block, int64_t token) {
    const int64_t full_blocks = block / kBlock;
    return (block + full_blocks * Math::kExtra) * tokens + token * (padded(least(kBlock, cols - block)) + Math::kExtra);
  }
  static int64_t packed_bytes(int64_t tokens, int64_t cols) {
    const int64_t blocks = (cols + kBlock - 1) / kBlock;
    return (padded(cols) + blocks * Math::kExtra) * tokens * static_cast<int64_t>(sizeof(X));
  }

  static void pack(const float* x, int64_t x_stride, int64_t tokens, int64_t cols, int64_t tile, void* packed) {
    const int64_t begin = tile_begin(tokens, tile);
    const int64_t count = tile_begin(tokens, tile + 1) - begin;
    for (int64_t block = 0; block < cols; block += kBlock) {
      const int64_t width = least(kBlock, cols - block);
      X* to = static_cast<X*>(packed) + packed_at(tokens, cols, block, begin);
      for (int64_t t = 0; t < count; ++t) {
        Math::pack(x + (begin + t) * x_stride + block, width, to + t * kStep, count * kStep,
                   to + padded(width) * count + t * Math::kExtra);
      }
    }
  }

  // Rows [first, last) of one block against every token. `data` is row `first`'s.
  template <class W>
  static void multiply_block(const W* data, int64_t stride, Ahead* ahead, int64_t block, int64_t read_cols,
                             int64_t first, int64_t last, const WeightRows& w, const X* packed, int64_t tokens,
                             float* y, int64_t y_stride) {
    const int64_t cols = least(kBlock, w.cols - block);
    for (int64_t i = 0; i < token_tiles(tokens); ++i) {
      const int64_t t = tile_begin(tokens, i);
      const int64_t count = tile_begin(tokens, i + 1) - t;
      const X* x = packed + packed_at(tokens, w.cols, block, t);
      const Activations in = {x, kStep, count * kStep, x + padded(cols) * count};
      for (int64_t r = first; r < last; r += kRows) {
        const int rows = static_cast<int>(least(kRows, last - r));
        const W* row[kRows];
        tile_rows(data + (r - first) * stride, stride, rows, row);
        const Output out = {
            y + t * y_stride + r,  y_stride, w.row_scale == nullptr ? nullptr : w.row_scale + r, rows, block == 0,
            block + cols == w.cols};
        tile_of<true>(count, row, i == 0 ? ahead : nullptr, in, read_cols, out);
      }
    }
  }

  template <class W>
  static void widen_rows(const W* data, int64_t stride, int64_t rows, int64_t cols, Ahead& ahead, X* panel) {
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(W));
    for (int64_t r = 0; r < rows; ++r, data += stride, panel += kBlock) {
      for (int64_t c = 0; c < cols; c += kLine) {
        if ((c / kLine) % 4 == 0) ahead.template fetch<false>();
        const int64_t end = least(c + kLine, cols);
        for (int64_t i = c; i < end; i += kStep)
          Math::widen(panel + i, data + i, static_cast<int>(least(kStep, end - i)));
      }
    }
  }

  // ManyKernel::multiply. W is read where it lies if its elements are what Math multiplies, else widened into the
  // panel.
  template <class W, bool kWiden>
  static void multiply(const WeightRows& w, int64_t first, int64_t last, const void* packed, int64_t tokens, float* y,
                       int64_t y_stride, void* panel) {
    if (w.cols == 0) return zero(first, last, tokens, y, y_stride);
    // Either four rows meet all tokens in turn, or a tile of tokens, in L1, meets all rows of a panel, in L2.
    const int64_t group = packed_bytes(tokens, w.cols) <= kResidentBytes ? kRows : last - first;
    const X* px = static_cast<const X*>(packed);
    for (int64_t r = first; r < last; r += group) {
      const int64_t end = least(r + group, last);
      Ahead ahead = next_tile<W>(w, r);
      for (int64_t block = 0; block < w.cols; block += kBlock) {
        const int64_t cols = least(kBlock, w.cols - block);
        const W* data = static_cast<const W*>(w.data) + r * w.cols + block;
        if constexpr (kWiden) {
          widen_rows(data, w.cols, end - r, cols, ahead, static_cast<X*>(panel));
          multiply_block(static_cast<const X*>(panel), kBlock, nullptr, block, padded(cols), r, end, w, px, tokens, y,
                         y_stride);
        } else {
          multiply_block(data, w.cols, group == kRows ? &ahead : nullptr, block, cols, r, end, w, px, tokens, y,
                         y_stride);
        }
      }
    }
  }

  template <class W, bool kWiden>
  static constexpr ManyKernel many() {
    return {kTokens, packed_bytes, pack, multiply<W, kWiden>};
  }
};

// All weight types through fp32.
template <class Math>
constexpr LinearKernel linear_f32(const char* isa) {
  using T = Tile<Math>;
  return {isa,
          {T::template few<float>, T::template few<Bf16>, T::template few<Fp16>, T::template few<int8_t>},
          {},
          {T::template many<float, false>(), T::template many<Bf16, true>(), T::template many<Fp16, true>(),
           T::template many<int8_t, true>()}};
}

}  // namespace flashmla::runner
