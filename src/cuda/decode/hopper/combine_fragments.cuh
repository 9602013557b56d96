// The sum of partial results that lie in the order in which the threads of the few-rows kernel held them
// (few_rows_tile.cuh): float4 number (panel * row groups + i) * 128 + thread is, of rows 8 i + pair and the next, the
// columns 64 panel + column and 8 further on: (column, row), (column, next row), (column + 8, row), (column + 8, next).
#pragma once

#include "cuda/decode/combine_share.cuh"
#include "cuda/decode/hopper/few_rows_layout.h"

namespace flashmla::cuda::hopper {

// Sum of partial results of two rows: two columns of each, not yet divided, with the rows' maxima and sums.
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

// One block's share: a thread a float4; where they are few, up to eight threads, each with every eighth part.
template <typename T, int kRows>
__device__ void combine_fragments(const DecodeKernelParams& p, const portable::Share& share, FragmentSum* exchange) {
  constexpr int kQuads = kRows * kMaxLatent / 4;
  constexpr int kClosed = 8;  // lanes that exchange columns at the end
  const int begin = kQuads / kClosed * share.rank / share.ranks * kClosed;
  const int end = kQuads / kClosed * (share.rank + 1) / share.ranks * kClosed;
  int log2_groups = 0;
  while ((2 << log2_groups) <= portable::kMostGroups && (end - begin) << (log2_groups + 1) <= kCombineThreads)
    ++log2_groups;
  const int groups = 1 << log2_groups;
  const int columns = kCombineThreads >> log2_groups;  // whole warps
  const int group = threadIdx.x / columns;
  const int rows = portable::tile_rows<kRows>(p, share.segment);
#pragma unroll 1
  for (int base = begin; base < end; base += columns) {
    const int quad = base + threadIdx.x % columns;
    const bool active = quad < end;
    const int thread = quad % 128;
    const int row = quad / 128 % (kRows / 8) * 8 + thread % 4 * 2;
    FragmentSum sum;
#pragma unroll 1
    for (int part = group; part < share.parts && active; part += groups * portable::kLoadsInFlight) {
      FragmentSum v[portable::kLoadsInFlight];
#pragma unroll
      for (int i = 0; i < portable::kLoadsInFlight; ++i) {
        if (part + i * groups >= share.parts) continue;
        const int64_t slot = share.slot(part + i * groups);
        const float4 ml = ptx::load_l2(reinterpret_cast<const float4*>(p.partial_ml + slot * kRows + row));
        v[i].o = ptx::load_l2(reinterpret_cast<const float4*>(p.partial_out) + slot * kQuads + quad);
        v[i].m[0] = ml.x;
        v[i].l[0] = ml.y;
        v[i].m[1] = ml.z;
        v[i].l[1] = ml.w;
      }
      sum.add(v);
    }
    if (groups > 1) {
      exchange[threadIdx.x] = sum;
      __syncthreads();
      if (group == 0) {
        FragmentSum others[portable::kMostGroups - 1];
#pragma unroll
        for (int i = 1; i < portable::kMostGroups; ++i) {
          if (i < groups) others[i - 1] = exchange[threadIdx.x + i * columns];
        }
        sum.add(others);
      }
      __syncthreads();
    }
    if (group != 0) continue;
    const bool empty[2] = {sum.l[0] == 0.0f, sum.l[1] == 0.0f};
    const float inverse[2] = {empty[0] ? 0.0f : 1.0f / sum.l[0], empty[1] ? 0.0f : 1.0f / sum.l[1]};
    sum.o = {sum.o.x * inverse[0], sum.o.y * inverse[1], sum.o.z * inverse[0], sum.o.w * inverse[1]};
    // Neighbouring columns meet: this thread keeps one of the rows, its neighbour the other one.
    const int odd = thread / 4 % 2;
    const float low = __shfl_xor_sync(~0u, odd ? sum.o.x : sum.o.y, 4);
    const float high = __shfl_xor_sync(~0u, odd ? sum.o.z : sum.o.w, 4);
    if (!active) continue;
    const int column = quad / 128 / (kRows / 8) * 64 + thread / 32 * 16 + thread % 32 / 8 * 2;
    if (row + odd < rows) {
      const portable::RowPlace place = portable::row_place<kRows>(p, share.segment, row + odd);
      T* out = static_cast<T*>(p.out) + portable::offset_of(p.out_stride, share.segment, place) + column;
      const uint32_t packed[2] = {odd ? portable::pack(low, sum.o.y, T()) : portable::pack(sum.o.x, low, T()),
                                  odd ? portable::pack(high, sum.o.w, T()) : portable::pack(sum.o.z, high, T())};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (p.out_aligned) {
          *reinterpret_cast<uint32_t*>(out + 8 * half) = packed[half];
        } else {
          out[8 * half] = reinterpret_cast<const T*>(&packed[half])[0];
          out[8 * half + 1] = reinterpret_cast<const T*>(&packed[half])[1];
        }
      }
    }
    if (quad >= kRows / 8 * 128 || thread >= 4 || p.lse == nullptr) continue;  // one thread for two rows
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + r >= rows) continue;
      const portable::RowPlace place = portable::row_place<kRows>(p, share.segment, row + r);
      p.lse[portable::offset_of(p.lse_stride, share.segment, place)] =
          empty[r] ? p.empty_lse : portable::lse_of(sum.m[r], sum.l[r]);
    }
  }
}

}  // namespace flashmla::cuda::hopper
