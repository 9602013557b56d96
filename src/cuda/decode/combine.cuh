// The combine kernel: adds up the partial results of tiles that several slices share.
//
// Fixed grid, one block a slice. A tile that n slices share is split among their n blocks by columns, so that every
// block reads as many bytes as its slice wrote, whatever the batch looks like; blocks of whole tiles end at once. The
// plan is found again from the lengths, before the wait for the split kernel: each of its blocks has passed its own
// wait before it lets this kernel start. Slices of 64 rows are large; where they are few, up to kMostSharers blocks
// share the work of each. Sums run in the order of the slices; threads that share a quad are grouped by a rule that
// depends on n alone, and with 64 rows there are none: equal inputs give equal bits.
#pragma once

#include <type_traits>

#include "cuda/decode/combine_share.cuh"
#include "cuda/decode/hopper/combine_fragments.cuh"
#include "cuda/ptx/hopper.cuh"

namespace flashmla::cuda {

namespace portable {

// Sum of partial results of one row: columns of the output, not yet divided, with their maximum and row sum.
struct Partial {
  float m = -INFINITY;  // log2 units
  float l = 0;
  float4 o = {0, 0, 0, 0};

  // Adds several at once: their weights do not wait for each other.
  template <int kCount>
  __device__ void add(const Partial (&others)[kCount]) {
    float most = m;
#pragma unroll
    for (int i = 0; i < kCount; ++i) most = fmaxf(most, others[i].m);
    const float reference = most == -INFINITY ? 0.0f : most;
    const float own = ptx::exp2_approx(m - reference);
    m = most;
    l *= own;
    o = {o.x * own, o.y * own, o.z * own, o.w * own};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float weight = ptx::exp2_approx(others[i].m - reference);
      l = fmaf(others[i].l, weight, l);
      o.x = fmaf(others[i].o.x, weight, o.x);
      o.y = fmaf(others[i].o.y, weight, o.y);
      o.z = fmaf(others[i].o.z, weight, o.z);
      o.w = fmaf(others[i].o.w, weight, o.w);
    }
  }
};

// A thread a quad of columns; where quads are few, up to eight, each with every eighth part.
template <typename T, DecodeConfig C>
__device__ void combine_rows(const DecodeKernelParams& p, const Share& share, Partial* exchange) {
  const int row_quads = Extent<C>{p}.latent() / 4;
  const int quads = tile_rows<C.rows>(p, share.segment) * row_quads;
  const int begin = quads * share.rank / share.ranks;
  const int end = quads * (share.rank + 1) / share.ranks;
  int log2_groups = 0;
  while ((2 << log2_groups) <= kMostGroups && (end - begin) << (log2_groups + 1) <= kCombineThreads) ++log2_groups;
  const int groups = 1 << log2_groups;
  const int columns = kCombineThreads >> log2_groups;
  const int group = threadIdx.x / columns;
  for (int base = begin; base < end; base += columns) {
    const int quad = base + threadIdx.x % columns;
    const int row = quad / row_quads;
    const bool active = quad < end;
    Partial sum;
    for (int part = group; part < share.parts && active; part += groups * kLoadsInFlight) {
      Partial v[kLoadsInFlight];
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) {
        if (part + i * groups >= share.parts) continue;
        const int64_t at = share.slot(part + i * groups) * C.rows;
        const float2 ml = ptx::load_l2(p.partial_ml + at + row);
        v[i].o = ptx::load_l2(reinterpret_cast<const float4*>(p.partial_out) + at * row_quads + quad);
        v[i].m = ml.x;
        v[i].l = ml.y;
      }
      sum.add(v);
    }
    if (groups > 1) {
      exchange[threadIdx.x] = sum;
      __syncthreads();
      if (group == 0) {
        Partial others[kMostGroups - 1];
#pragma unroll
        for (int i = 1; i < kMostGroups; ++i) {
          if (i < groups) others[i - 1] = exchange[threadIdx.x + i * columns];
        }
        sum.add(others);
      }
      __syncthreads();
    }
    if (!active || group != 0) continue;
    const bool empty = sum.l == 0.0f;
    const float inverse = empty ? 0.0f : 1.0f / sum.l;
    const RowPlace place = row_place<C.rows>(p, share.segment, row);
    T* out = static_cast<T*>(p.out) + offset_of(p.out_stride, share.segment, place) + quad % row_quads * 4;
    const uint2 packed =
        make_uint2(pack(sum.o.x * inverse, sum.o.y * inverse, T()), pack(sum.o.z * inverse, sum.o.w * inverse, T()));
    if (p.out_aligned) {
      *reinterpret_cast<uint2*>(out) = packed;
    } else {
      for (int i = 0; i < 4; ++i) out[i] = reinterpret_cast<const T*>(&packed)[i];
    }
    if (quad % row_quads == 0 && p.lse != nullptr)
      p.lse[offset_of(p.lse_stride, share.segment, place)] = empty ? p.empty_lse : lse_of(sum.m, sum.l);
  }
}

}  // namespace portable

// How partial results lie in memory.
enum class PartialOrder : int32_t {
  kRows,       // row by row
  kFragments,  // hopper/combine_fragments.cuh
};

template <typename T, int kRows, Widths kWidths, PartialOrder kOrder, LineKind kKind>
__global__ void __launch_bounds__(kCombineThreads, kWidths == Widths::kTuned && kRows < 64 ? 2 : 1)
    combine_partials(const __grid_constant__ DecodeKernelParams p) {
#ifdef __CUDA_ARCH__
  if constexpr (kOrder == PartialOrder::kFragments && FLASHMLA_SM90A == 0) return __trap();  // table.cc: never here
#endif
  constexpr DecodeConfig C{kRows, kWidths};
  using Sum = std::conditional_t<kOrder == PartialOrder::kRows, portable::Partial, hopper::FragmentSum>;
  __shared__ Sum exchange[kCombineThreads];
  warm_parameters(p);
  // The split kernel passed its own wait before it let this one start, so lengths are as the caller wants them.
  Line<C.rows, kKind> line(p);
  const LineTotals totals = line.read();
  const LineCut cut = line_cut<kKind>(p, totals);
  const BlockPlace place = block_place<kKind>(p);
  // Slices of 64 rows are large: where they are few, several blocks share the work of each.
  constexpr uint32_t kMostSharers = 8;
  // Fewer quads a block would be shared by threads, and their grouping would follow from the number of sharers.
  static_assert(kRows < 64 || kRows * kMaxLatent / 4 / kMostSharers > kCombineThreads / 2);
  const uint32_t sharers =
      kRows < 64 || cut.slices == 0 ? 1 : min(static_cast<uint32_t>(p.positions) / cut.slices, kMostSharers);
  const uint32_t slice =
      sharers > 1 ? place.position / sharers : slice_of_block(place.position, p.positions, cut.slices);

  if (slice >= cut.slices || cut.width != 0) {  // no work, or whole tiles alone
    ptx::grid_dependency_wait();
    return;
  }
  const Slices slices(cut);
  const uint32_t begin = slices.begin(slice);
  const uint32_t end = slices.begin(slice + 1);
  const uint32_t lanes = kKind == LineKind::kAny ? 1 : p.lanes.divisor;
  const bool splits = kKind == LineKind::kAny && p.units.max_splits != 0;
  bool waited = false;
  // The tile at the slice's begin, then the one at its end; of forced splits every tile whose first one is in the
  // slice.
  for (uint32_t at = begin; at < end;) {
    const Cursor<C.rows, kKind> cursor(p, line.rule(), line.find(at, cut), cut, at, end, place.lane);
    if (cursor.done()) break;  // the slice ends before the tile's first unit
    const Segment& segment = cursor.segment();
    const uint32_t tile_begin = cursor.tile_place();
    const uint32_t tile_end = tile_begin + segment.units;
    const bool shared = splits ? segment.begins_here() && segment.units > 1 : tile_begin < begin || tile_end > end;
    portable::Share share = splits ? portable::split_share<C.rows>(p, segment)
                                   : portable::slice_share(segment, slices, tile_begin, slice, place.lane, lanes);
    if (sharers > 1) {
      share.rank = share.rank * sharers + place.position % sharers;
      share.ranks *= sharers;
    }
    at = splits || tile_end >= end - 1 ? tile_end : end - 1;
    if (!waited) ptx::grid_dependency_wait();
    waited = true;
    if (!shared) continue;
    if constexpr (kOrder == PartialOrder::kRows)
      portable::combine_rows<T, C>(p, share, exchange);
    else
      hopper::combine_fragments<T, kRows>(p, share, exchange);
  }
}

}  // namespace flashmla::cuda
