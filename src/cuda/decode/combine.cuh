// The combine kernel: adds up the partial results of tiles that several slices share.
//
// Fixed grid, one block a slice. A tile that n slices share is split among their n blocks by columns, so that every
// block reads as many bytes as its slice wrote, whatever the batch looks like; blocks of whole tiles end at once. The
// plan is found again from the lengths, before the wait for the split kernel. Sums run in the order of the slices,
// grouped by a rule that depends on n alone: equal inputs give equal bits.
#pragma once

#include "cuda/decode/kernel_sm80.cuh"

namespace flashmla::cuda {

namespace portable {

constexpr int kLoadsInFlight = 8;

// The share of one block in one tile: columns rank / ranks to (rank + 1) / ranks of the sum over `parts` partial results.
struct Share {
  Segment segment;
  int parts = 0;
  int rank = 0;
  int ranks = 1;
  int64_t first_slot = 0;  // of part 0
  int64_t next_slot = 0;   // of part 1; the others follow `slot_step` apart
  int slot_step = 1;

  __device__ int64_t slot(int part) const { return part == 0 ? first_slot : next_slot + (part - 1) * slot_step; }
};

// A tile that slices share, each with a rank in it; `tile_begin` is its first unit on the line.
__device__ __forceinline__ Share slice_share(const Segment& segment, const Slices& cut, int64_t tile_begin, int slice) {
  Share share;
  const int first = cut.owner(tile_begin);
  share.segment = segment;
  share.parts = cut.owner(tile_begin + segment.units - 1) - first + 1;
  share.rank = slice - first;
  share.ranks = share.parts;
  share.first_slot = 2 * static_cast<int64_t>(first) + 1;
  share.next_slot = share.first_slot + 1;
  share.slot_step = 2;
  return share;
}

// A tile cut into splits, all of it one block's.
template <int kRows>
__device__ __forceinline__ Share split_share(const DecodeKernelParams& p, const Segment& segment) {
  Share share;
  share.segment = segment;
  share.parts = static_cast<int>(segment.units);
  share.first_slot = partial_slot<kRows>(p, segment, 0);
  share.next_slot = share.first_slot + 1;
  return share;
}

// One warp a row: weights of its parts, so that out = sum of weight x partial; the lse, where this share owns it.
template <DecodeConfig C>
__device__ void row_weights(const DecodeKernelParams& p, const Share& share, int row, float* weights, bool owns_lse) {
  const int lane = threadIdx.x % 32;
  float m = -INFINITY;
  for (int part = lane; part < share.parts; part += 32) {
    const float2 ml = ptx::load_l2(p.partial_ml + share.slot(part) * C.rows + row);
    m = fmaxf(m, ml.x);
  }
  for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
  const float reference = m == -INFINITY ? 0.0f : m;
  float l = 0;
  for (int part = lane; part < share.parts; part += 32) {
    const float2 ml = ptx::load_l2(p.partial_ml + share.slot(part) * C.rows + row);
    l += ml.y * ptx::exp2_approx(ml.x - reference);
  }
  for (int step = 16; step > 0; step /= 2) l += __shfl_xor_sync(~0u, l, step);
  const bool empty = l == 0.0f;
  const float inverse = empty ? 0.0f : 1.0f / l;
  for (int part = lane; part < share.parts; part += 32) {
    const float2 ml = ptx::load_l2(p.partial_ml + share.slot(part) * C.rows + row);
    weights[part] = ptx::exp2_approx(ml.x - reference) * inverse;
  }
  if (owns_lse && lane == 0 && p.lse != nullptr) {
    const RowPlace place = row_place<C.rows>(p, share.segment, row);
    p.lse[offset_of(p.lse_stride, share.segment, place)] =
        empty ? p.empty_lse : (m + log2f(l)) * 0.6931471805599453f;
  }
}

template <typename T, DecodeConfig C>
__device__ void combine_share(const DecodeKernelParams& p, const Share& share, float* weights, float4* sums) {
  const int row_quads = Extent<C>{p}.latent() / 4;
  const int quads = tile_rows<C.rows>(p, share.segment) * row_quads;
  const int begin = quads * share.rank / share.ranks;
  const int end = quads * (share.rank + 1) / share.ranks;
  if (begin == end) return;
  const int first_row = begin / row_quads;
  // Threads of a quad of columns: as many as there are to spare, each a part of the slices.
  int groups = 1;
  while (groups < 8 && (end - begin) * groups * 2 <= kCombineThreads) groups *= 2;
  const int columns = kCombineThreads / groups;
  const int group = threadIdx.x / columns;
  const int64_t slot_quads = static_cast<int64_t>(C.rows) * row_quads;
  const auto* partial = reinterpret_cast<const float4*>(p.partial_out);
  const auto load = [&](int part, int quad) { return ptx::load_l2(partial + share.slot(part) * slot_quads + quad); };

  bool weighed = false;
  for (int base = begin; base < end; base += columns) {
    const int quad = base + threadIdx.x % columns;
    const bool active = quad < end;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int part = group; part < share.parts || !weighed; part += groups * kLoadsInFlight) {
      float4 v[kLoadsInFlight];
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) {
        const int at = part + i * groups;
        v[i] = active && at < share.parts ? load(at, quad) : make_float4(0, 0, 0, 0);
      }
      if (!weighed) {  // while the first loads are on their way
        const int last_row = (end - 1) / row_quads;
        for (int row = first_row + threadIdx.x / 32; row <= last_row; row += kCombineThreads / 32) {
          row_weights<C>(p, share, row, weights + (row - first_row) * share.parts, row * row_quads >= begin);
        }
        __syncthreads();
        weighed = true;
      }
      const float* weight = weights + (quad / row_quads - first_row) * share.parts;
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) {
        const int at = part + i * groups;
        if (!active || at >= share.parts) continue;
        const float w = weight[at];
        if (w == 0.0f) continue;  // a part without keys for this row
        sum.x = fmaf(w, v[i].x, sum.x);
        sum.y = fmaf(w, v[i].y, sum.y);
        sum.z = fmaf(w, v[i].z, sum.z);
        sum.w = fmaf(w, v[i].w, sum.w);
      }
    }
    if (groups > 1) {
      sums[threadIdx.x] = sum;
      __syncthreads();
      for (int other = 1; other < groups && group == 0; ++other) {
        const float4 v = sums[threadIdx.x + other * columns];
        sum.x += v.x;
        sum.y += v.y;
        sum.z += v.z;
        sum.w += v.w;
      }
    }
    if (active && group == 0) {
      const RowPlace place = row_place<C.rows>(p, share.segment, quad / row_quads);
      T* out = static_cast<T*>(p.out) + offset_of(p.out_stride, share.segment, place) + quad % row_quads * 4;
      const uint2 packed = make_uint2(pack(sum.x, sum.y, T()), pack(sum.z, sum.w, T()));
      if (p.out_aligned)
        *reinterpret_cast<uint2*>(out) = packed;
      else
        for (int i = 0; i < 4; ++i) out[i] = reinterpret_cast<const T*>(&packed)[i];
    }
    __syncthreads();  // sums and weights are free again
  }
}

}  // namespace portable

template <typename T, int kRows, Widths kWidths>
__global__ void __launch_bounds__(kCombineThreads, 1)
    combine_partials(const __grid_constant__ DecodeKernelParams p) {
  constexpr DecodeConfig C{kRows, 32, kWidths};  // the keys of a block do not matter here
  // A share of a tile that slices share spans at most rows / slices + 2 rows, each with a weight for each slice.
  constexpr int kSliceWeights = C.rows + 2 * kMaxBlocks;
  constexpr int kSplitWeights = C.rows * kMostSplits;
  __shared__ float weights[kSliceWeights > kSplitWeights ? kSliceWeights : kSplitWeights];
  __shared__ float4 sums[kCombineThreads];
  // The split kernel passed its own wait before it let this one start, so lengths are as the caller wants them.
  Line<C.rows> line(p);
  const LineTotals totals = line.read();
  const int slices = slice_count(totals, p.blocks, p.few_units, p.least_units);
  const int slice = slice_of_block(blockIdx.x, gridDim.x, slices);
  if (slice >= slices) {
    ptx::grid_dependency_wait();
    return;
  }
  const Slices cut(totals.units, slices);
  const int64_t begin = cut.begin(slice);
  const int64_t end = cut.begin(slice + 1);
  bool waited = false;
  // The tile at the slice's begin, then the one at its end; of forced splits every tile whose first one is in the slice.
  for (Cursor<C.rows> cursor(p, line.find(begin), begin, end);;) {
    const Segment& segment = cursor.segment();
    const int64_t tile_begin = cursor.unit() - segment.unit_begin;
    const int64_t tile_end = tile_begin + segment.units;
    const bool splits = p.units.max_splits != 0;
    const bool shared = splits ? segment.begins_here() && segment.units > 1 : tile_begin < begin || tile_end > end;
    const portable::Share share = splits ? portable::split_share<C.rows>(p, segment)
                                         : portable::slice_share(segment, cut, tile_begin, slice);
    if (!waited) ptx::grid_dependency_wait();
    waited = true;
    if (shared) portable::combine_share<T, C>(p, share, weights, sums);
    if (splits) {
      cursor.next();
      if (cursor.done()) break;
    } else {
      if (tile_end >= end) break;
      cursor = Cursor<C.rows>(p, line.find(end - 1), end - 1, end);
    }
  }
}

}  // namespace flashmla::cuda
