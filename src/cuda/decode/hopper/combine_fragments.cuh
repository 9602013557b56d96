// The sum of partial results that lie in the order in which the threads of a Hopper kernel held them: a warp writes and
// reads 512 bytes in a row. A float4 holds two columns of two rows: (column, row), (column, other row), (other column,
// row), (other column, other row).
#pragma once

#include "cuda/decode/combine_share.cuh"
#include "cuda/decode/hopper/few_rows_layout.h"

namespace flashmla::cuda::hopper {

// Accumulators of m64nNk16 with columns as rows (few_rows_tile.cuh): float4 number (panel * row groups + i) * 128 +
// thread has rows 8 i + pair and the next, columns 64 panel + c and c + 8.
template <int kRows>
struct FewRowsOrder {
  int thread;
  int row[2];
  int column;

  __device__ explicit FewRowsOrder(int quad) : thread(quad % 128) {
    row[0] = quad / 128 % (kRows / 8) * 8 + thread % 4 * 2;
    row[1] = row[0] + 1;
    column = quad / 128 / (kRows / 8) * 64 + thread / 32 * 16 + thread % 32 / 4;
  }
};

// Accumulators of m64n256k16, one of each half of the columns (rows64_values.cuh): float4 number (32 half + group) *
// 128 + thread has rows r and r + 8, columns 256 half + 8 group + c and the next.
struct Rows64Order {
  int thread;
  int row[2];
  int column;

  __device__ explicit Rows64Order(int quad) : thread(quad % 128) {
    row[0] = thread / 32 * 16 + thread % 32 / 4;
    row[1] = row[0] + 8;
    column = quad / 128 * 8 + thread % 4 * 2;
  }
};

// Sum of partial results of a float4, not yet divided, with its rows' maxima and sums.
struct FragmentSum {
  float m[2] = {-INFINITY, -INFINITY};  // log2 units
  float l[2] = {0, 0};
  float4 o = {0, 0, 0, 0};

  // Adds several at once: their weights do not wait for each other.
  template <int kCount>
  __device__ void add(const FragmentSum (&others)[kCount]) {
    float own[2];
    float reference[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = m[r];
#pragma unroll
      for (int i = 0; i < kCount; ++i) most = fmaxf(most, others[i].m[r]);
      reference[r] = most == -INFINITY ? 0.0f : most;
      own[r] = ptx::exp2_approx(m[r] - reference[r]);
      m[r] = most;
      l[r] *= own[r];
    }
    o = {o.x * own[0], o.y * own[1], o.z * own[0], o.w * own[1]};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const FragmentSum& other = others[i];
      const float weight[2] = {ptx::exp2_approx(other.m[0] - reference[0]),
                               ptx::exp2_approx(other.m[1] - reference[1])};
      l[0] = fmaf(other.l[0], weight[0], l[0]);
      l[1] = fmaf(other.l[1], weight[1], l[1]);
      o.x = fmaf(other.o.x, weight[0], o.x);
      o.y = fmaf(other.o.y, weight[1], o.y);
      o.z = fmaf(other.o.z, weight[0], o.z);
      o.w = fmaf(other.o.w, weight[1], o.w);
    }
  }
};

template <typename T>
__device__ __forceinline__ void write_pair(const DecodeKernelParams& p, T* out, float low, float high) {
  const uint32_t packed = portable::pack(low, high, T());
  if (p.out_aligned) {
    *reinterpret_cast<uint32_t*>(out) = packed;
    return;
  }
  out[0] = reinterpret_cast<const T*>(&packed)[0];
  out[1] = reinterpret_cast<const T*>(&packed)[1];
}

// Writes a sum, if it is `active`. All lanes of the warp call it.
template <typename T, int kRows>
__device__ void write_sum(const DecodeKernelParams& p, const Segment& segment, int quad, FragmentSum sum, bool active) {
  constexpr bool kFewRows = kRows < 64;
  using Order = std::conditional_t<kFewRows, FewRowsOrder<kRows>, Rows64Order>;
  const Order at(quad);
  const int rows = portable::tile_rows<kRows>(p, segment);
  const bool empty[2] = {sum.l[0] == 0.0f, sum.l[1] == 0.0f};
  const float inverse[2] = {empty[0] ? 0.0f : 1.0f / sum.l[0], empty[1] ? 0.0f : 1.0f / sum.l[1]};
  sum.o = {sum.o.x * inverse[0], sum.o.y * inverse[1], sum.o.z * inverse[0], sum.o.w * inverse[1]};
  const auto out_row = [&](int row) {
    const portable::RowPlace place = portable::row_place<kRows>(p, segment, row);
    return static_cast<T*>(p.out) + portable::offset_of(p.out_stride, segment, place);
  };
  if constexpr (kFewRows) {
    // Neighbouring columns meet: this thread keeps one of the rows, its neighbour the other one.
    const int odd = at.column % 2;
    const float low = __shfl_xor_sync(~0u, odd ? sum.o.x : sum.o.y, 4);
    const float high = __shfl_xor_sync(~0u, odd ? sum.o.z : sum.o.w, 4);
    if (!active) return;
    const int row = odd ? at.row[1] : at.row[0];
    if (row < rows) {
      T* out = out_row(row) + at.column - odd;
      write_pair(p, out, odd ? low : sum.o.x, odd ? sum.o.y : low);
      write_pair(p, out + 8, odd ? high : sum.o.z, odd ? sum.o.w : high);
    }
  } else {
    if (!active) return;
    if (at.row[0] < rows) write_pair(p, out_row(at.row[0]) + at.column, sum.o.x, sum.o.z);
    if (at.row[1] < rows) write_pair(p, out_row(at.row[1]) + at.column, sum.o.y, sum.o.w);
  }
  if (at.column != 0 || p.lse == nullptr) return;  // one thread for two rows
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (at.row[r] >= rows) continue;
    const portable::RowPlace place = portable::row_place<kRows>(p, segment, at.row[r]);
    p.lse[portable::offset_of(p.lse_stride, segment, place)] =
        empty[r] ? p.empty_lse : portable::lse_of(sum.m[r], sum.l[r]);
  }
}

template <int kRows>
__device__ __forceinline__ FragmentSum load_fragment(const DecodeKernelParams& p, int64_t slot, int quad) {
  using Order = std::conditional_t<(kRows < 64), FewRowsOrder<kRows>, Rows64Order>;
  const Order at(quad);
  FragmentSum v;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float2 ml = ptx::load_l2(p.partial_ml + slot * kRows + at.row[r]);
    v.m[r] = ml.x;
    v.l[r] = ml.y;
  }
  v.o = ptx::load_l2(reinterpret_cast<const float4*>(p.partial_out) + slot * (kRows * kMaxLatent / 4) + quad);
  return v;
}

// One block's share, kQuads float4 a thread and kParts of the parts at a time. Where float4 are few, up to eight
// threads have the same ones, each every eighth part.
template <typename T, int kRows, int kQuads, int kParts>
__device__ __forceinline__ void combine_fragments(const DecodeKernelParams& p, const portable::Share& share, int begin,
                                                  int end, FragmentSum* exchange) {
  int log2_groups = 0;
  if (kQuads == 1) {
    while ((2 << log2_groups) <= portable::kMostGroups && (end - begin) << (log2_groups + 1) <= kCombineThreads)
      ++log2_groups;
  }
  const int groups = 1 << log2_groups;
  const int columns = kCombineThreads >> log2_groups;  // whole warps
  const int group = threadIdx.x / columns;
#pragma unroll 1
  for (int base = begin + threadIdx.x % columns; base - static_cast<int>(threadIdx.x % columns) < end;
       base += columns * kQuads) {
    FragmentSum sums[kQuads];
#pragma unroll 1
    for (int part = group; part < share.parts; part += groups * kParts) {
      FragmentSum v[kQuads][kParts];
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          const int quad = base + q * columns;
          if (quad < end && part + i * groups < share.parts)
            v[q][i] = load_fragment<kRows>(p, share.slot(part + i * groups), quad);
        }
      }
#pragma unroll
      for (int q = 0; q < kQuads; ++q) sums[q].add(v[q]);
    }
    if (groups > 1) {
      exchange[threadIdx.x] = sums[0];
      __syncthreads();
      if (group == 0) {
        FragmentSum others[portable::kMostGroups - 1];
#pragma unroll
        for (int i = 1; i < portable::kMostGroups; ++i) {
          if (i < groups) others[i - 1] = exchange[threadIdx.x + i * columns];
        }
        sums[0].add(others);
      }
      __syncthreads();
    }
    if (group != 0) continue;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int quad = base + q * columns;
      write_sum<T, kRows>(p, share.segment, quad, sums[q], quad < end);
    }
  }
}

// words[k] of lane 4 n + i becomes words[i] of lane 4 n + k. All lanes of the warp call it.
__device__ __forceinline__ void transpose_in_quads(uint32_t (&words)[4]) {
  const int lane = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if ((low & step) != 0) continue;
      const uint32_t other = __shfl_xor_sync(~0u, upper ? words[low] : words[low + step], step);
      words[low] = upper ? other : words[low];
      words[low + step] = upper ? words[low + step] : other;
    }
  }
}

// One block's share of a tile of 64 rows in at most kParts parts. A warp has 16 rows, whose weights it finds once, and
// 32 columns at a time, of which a lane writes eight in a row.
template <typename T, int kParts>
__device__ __forceinline__ void combine_rows64(const DecodeKernelParams& p, const portable::Share& share) {
  constexpr int kStrips = 4;                        // of 16 rows
  constexpr int kRuns = kStrips * kMaxLatent / 32;  // a warp's turns
  constexpr int kRowsInRun = 2;                     // of a thread: `row` and `row + 8`
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int end = kRuns * (share.rank + 1) / share.ranks;
  const int first = kRuns * share.rank / share.ranks + static_cast<int>(threadIdx.x / 32);
  if (first >= end) return;
  const int strip = first % kStrips;  // the same in all turns
  const int row = strip * 16 + lane / 4;
  const int rows = portable::tile_rows<64>(p, share.segment);

  float m[kParts][kRowsInRun];
  float l[kParts][kRowsInRun];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
#pragma unroll
    for (int h = 0; h < kRowsInRun; ++h) {
      m[i][h] = -INFINITY;
      l[i][h] = 0;
      if (i >= share.parts) continue;
      const float2 ml = ptx::load_l2(p.partial_ml + share.slot(i) * 64 + row + 8 * h);
      m[i][h] = ml.x;
      l[i][h] = ml.y;
    }
  }
  float weight[kParts][kRowsInRun];
  T* out[kRowsInRun];
#pragma unroll
  for (int h = 0; h < kRowsInRun; ++h) {
    float most = m[0][h];
#pragma unroll
    for (int i = 1; i < kParts; ++i) most = fmaxf(most, m[i][h]);
    const float reference = most == -INFINITY ? 0.0f : most;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      weight[i][h] = ptx::exp2_approx(m[i][h] - reference);
      sum = fmaf(l[i][h], weight[i][h], sum);
    }
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int i = 0; i < kParts; ++i) weight[i][h] *= inverse;
    const portable::RowPlace place = portable::row_place<64>(p, share.segment, min(row + 8 * h, rows - 1));
    out[h] = static_cast<T*>(p.out) + portable::offset_of(p.out_stride, share.segment, place);
    if (p.lse != nullptr && first == strip && lane % 4 == 0 && row + 8 * h < rows) {
      p.lse[portable::offset_of(p.lse_stride, share.segment, place)] =
          sum == 0.0f ? p.empty_lse : portable::lse_of(most, sum);
    }
  }
  __syncwarp();

#pragma unroll 1
  for (int run = first; run < end; run += kCombineThreads / 32) {
    const int quad = run / kStrips * 4 * 128 + strip * 32 + lane;
    float4 v[kParts][4];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
#pragma unroll
      for (int group = 0; group < 4; ++group) {
        v[i][group] = {0, 0, 0, 0};
        if (i < share.parts)
          v[i][group] = ptx::load_l2(reinterpret_cast<const float4*>(p.partial_out) +
                                     share.slot(i) * (64 * kMaxLatent / 4) + quad + group * 128);
      }
    }
    uint32_t words[kRowsInRun][4];
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      float4 o = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        o.x = fmaf(v[i][group].x, weight[i][0], o.x);
        o.y = fmaf(v[i][group].y, weight[i][1], o.y);
        o.z = fmaf(v[i][group].z, weight[i][0], o.z);
        o.w = fmaf(v[i][group].w, weight[i][1], o.w);
      }
      words[0][group] = portable::pack(o.x, o.z, T());
      words[1][group] = portable::pack(o.y, o.w, T());
    }
#pragma unroll
    for (int h = 0; h < kRowsInRun; ++h) {
      transpose_in_quads(words[h]);
      if (row + 8 * h >= rows) continue;
      T* to = out[h] + run / kStrips * 32 + lane % 4 * 8;
      if (p.out_aligned) {
        *reinterpret_cast<uint4*>(to) = make_uint4(words[h][0], words[h][1], words[h][2], words[h][3]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] = reinterpret_cast<const T*>(words[h])[i];
      }
    }
    __syncwarp();
  }
}

// Several loads of a thread are on their way at a time, whether parts are many or few. With few rows the registers are
// few as well: a block has to fit beside one of the split kernel.
template <typename T, int kRows>
__device__ void combine_fragments(const DecodeKernelParams& p, const portable::Share& share, FragmentSum* exchange) {
  constexpr int kFloat4 = kRows * kMaxLatent / 4;
  constexpr int kClosed = 8;  // lanes that exchange columns at the end
  const int begin = kFloat4 / kClosed * share.rank / share.ranks * kClosed;
  const int end = kFloat4 / kClosed * (share.rank + 1) / share.ranks * kClosed;
  if constexpr (kRows == 64) {
    if (share.parts <= 2) return combine_rows64<T, 2>(p, share);
    if (share.parts <= 4) return combine_rows64<T, 4>(p, share);
  } else {
    if (share.parts <= 2) return combine_fragments<T, kRows, 2, 2>(p, share, begin, end, exchange);
  }
  return combine_fragments<T, kRows, 1, 8>(p, share, begin, end, exchange);
}

}  // namespace flashmla::cuda::hopper
