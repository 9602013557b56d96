// What brings keys and queries into shared memory for the few-rows kernel, and the ring that they pass through.
#pragma once

#include "cuda/decode/hopper/few_rows_layout.h"
#include "cuda/decode/rows.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace flashmla::cuda::hopper {

// A segment as the query warp hands it to the compute warps, which have no registers to walk the slice themselves.
struct Visit {
  Segment segment;
  int64_t partial_row = 0;  // first row of its partial result, if it has one
  bool work = false;        // no: the block has none
};
static_assert(sizeof(Visit) <= kVisitBytes);

template <class LayoutType>
struct Ring {
  using Layout = LayoutType;
  unsigned char* smem;
  uint32_t base;

  __device__ explicit Ring(unsigned char* memory) : smem(memory), base(ptx::shared_address(memory)) {}

  __device__ uint32_t group(int slot) const { return base + slot * kGroupBytes; }
  __device__ uint32_t queries() const { return base + Layout::kQueries; }
  __device__ uint32_t full(int slot) const { return base + Layout::kBarriers + 8 * slot; }
  __device__ uint32_t empty(int slot) const { return full(kRingGroups + slot); }
  __device__ uint32_t queries_full() const { return full(2 * kRingGroups); }
  __device__ uint32_t queries_empty() const { return full(2 * kRingGroups + 1); }
  __device__ Visit& visit(uint32_t number) const {
    return reinterpret_cast<Visit*>(smem + Layout::kVisits)[number % kNotedVisits];
  }
  // Of tile number `tile` of the slice: bit i is set where box i (2^log2_box keys) has no page.
  __device__ volatile uint32_t& absent(uint32_t tile) const {
    return reinterpret_cast<volatile uint32_t*>(smem + Layout::kAbsent)[tile % kNotedTiles];
  }

  __device__ void init() const {
    for (int slot = 0; slot < kRingGroups; ++slot) {
      ptx::mbarrier_init(full(slot), 1);
      ptx::mbarrier_init(empty(slot), kComputeWarps);
    }
    ptx::mbarrier_init(queries_full(), 1);
    ptx::mbarrier_init(queries_empty(), kComputeWarps);
    ptx::mbarrier_init_fence();
  }
};

// Where in the ring a warp is.
struct RingPlace {
  int slot = 0;
  uint32_t round = 0;

  __device__ void next() {
    if (++slot < kRingGroups) return;
    slot = 0;
    ++round;
  }
};

// With one request and one tile of rows, where each slice is one tile of keys, a block knows its page but for the
// question whether every second block is left out (slice_of_block). Half a warp looks up either answer while the length
// is on its way.
constexpr int kGuessLanes = 16;
__device__ __forceinline__ uint32_t guessed_slice(const DecodeKernelParams& p, uint32_t position, uint32_t half) {
  return half == 0 ? position : slice_of_block(position, p.positions, 0);
}
__device__ __forceinline__ int32_t guess_page(const DecodeKernelParams& p, uint32_t position) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t key =
      (guessed_slice(p, position, lane / kGuessLanes) << kLog2TileKeys) + (lane % kGuessLanes << p.log2_box);
  if (p.max_keys == 0) return -1;
  return ptx::load_l2(p.page_table + p.page_size.quotient(min(key, static_cast<uint32_t>(p.max_keys) - 1)));
}

// The key warp: every tile of every segment of the slice, in order. `guess` is guess_page's, of use if `guessed`.
template <class RingType, int kRows, LineKind kKind>
__device__ void load_keys(const DecodeKernelParams& p, const CUtensorMap& kv_map, Cursor<kRows, kKind> cursor,
                          int32_t guess, bool guessed, const RingType& ring) {
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t policy = ptx::evict_first_policy();
  const uint32_t log2_boxes = kLog2TileKeys - p.log2_box;  // of a tile
  const uint32_t boxes = 1u << log2_boxes;
  RingPlace place;
  uint32_t tile = 0;
  for (;;) {
    const Segment& segment = cursor.segment();
    const int32_t* table = p.page_table + segment.request * p.table_stride;
    const uint32_t end = segment.key_end();
    // A lane looks up one box of 32. What lies past the last key, and what has no page, gets a page that is outside
    // the tensor: it arrives as zeros.
    for (uint32_t window = segment.key_begin(); window < end; window += 32u << p.log2_box) {
      const uint32_t key = window + (lane << p.log2_box);
      const uint32_t entry = p.page_size.quotient(key);
      const auto token = static_cast<int32_t>(key - entry * p.page_size.divisor);
      int32_t page = guess;
      if (key >= end) page = -1;
      if (key < end && !guessed) page = ptx::load_l2(table + entry);
      const bool absent = static_cast<uint32_t>(page) >= static_cast<uint32_t>(p.pages);
      if (absent) page = -1;
      const uint32_t absent_boxes = __ballot_sync(~0u, absent);
#pragma unroll 1
      for (uint32_t box = 0; box < 32 && window + (box << p.log2_box) < end; box += boxes, ++tile) {
#pragma unroll 1
        for (int group = 0; group < kTileGroups; ++group, place.next()) {
          if (place.round > 0) ptx::mbarrier_wait(ring.empty(place.slot), place.round - 1 & 1);
          const uint32_t barrier = ring.full(place.slot);
          if (group == 0 && lane == 0) ring.absent(tile) = absent_boxes >> box & ((1u << boxes) - 1);
          if (lane == 0) ptx::mbarrier_arrive_expect(barrier, kGroupBytes);
          __syncwarp();
#pragma unroll 1
          for (uint32_t i = 0; i < boxes; ++i) {
            const int32_t box_page = __shfl_sync(~0u, page, box + i);
            const int32_t box_token = __shfl_sync(~0u, token, box + i);
            // One code site for all copies: it is fetched once.
            if (ptx::elect_one()) {
              uint32_t to = ring.group(place.slot) + (i << p.log2_box) * kRowBytes;
              const int first = group * kGroupPanels;
#pragma unroll 1
              for (int panel = first; panel < first + kGroupPanels; panel += p.box_panels, to += kPanelBytes)
                ptx::tensor_copy_4d(to, &kv_map, 0, box_token, panel, box_page, barrier, policy);
            }
          }
        }
        ptx::grid_dependency_launch();  // the combine kernel may come: what decides about the first keys is on its way
      }
    }
    if (segment.last) break;
    cursor.next();
  }
  ptx::grid_dependency_launch();
}

template <int kRows, class RingType>
__device__ void copy_queries(const DecodeKernelParams& p, const Segment& segment, const RingType& ring) {
  using Layout = typename RingType::Layout;
  const int chunk = threadIdx.x % 8;
  const int rows = portable::tile_rows<kRows>(p, segment);
#pragma unroll 1
  for (int row = threadIdx.x % 32 / 8; row < kRows; row += 4) {
    const bool valid = row < rows;
    const auto* latent = static_cast<const char*>(p.q);
    const auto* rope = static_cast<const char*>(p.q_rope);
    if (valid) {
      const portable::RowPlace place = portable::row_place<kRows>(p, segment, row);
      latent += (portable::offset_of(p.q_stride, segment, place) + chunk * 8) * kElementBytes;
      rope += (portable::offset_of(p.q_rope_stride, segment, place) + chunk * 8) * kElementBytes;
    }
    const uint32_t to = ring.queries() + tile::swizzled(row, chunk, kRowBytes);
#pragma unroll
    for (int panel = 0; panel < kValuePanels; ++panel)
      ptx::cp_async_16(to + panel * Layout::kQueryPanelBytes, latent + panel * kRowBytes, valid);
    ptx::cp_async_16(to + kValuePanels * Layout::kQueryPanelBytes, rope, valid);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::async_proxy_fence();
}

// Tells the compute warps that there is nothing to do.
template <class RingType>
__device__ void send_home(const RingType& ring) {
  if (threadIdx.x % 32 != 0) return;
  ring.visit(0) = {};
  ring.visit(0).segment.last = true;
  ptx::mbarrier_arrive(ring.queries_full());
}

// The query warp: each segment, with its tile of Q if it has keys; rows that do not exist become zeros.
template <class RingType, int kRows, LineKind kKind>
__device__ void load_queries(const DecodeKernelParams& p, Cursor<kRows, kKind> cursor, uint32_t slice,
                             const RingType& ring) {
  for (uint32_t number = 0;; ++number) {
    const Segment& segment = cursor.segment();
    // The tile before is not used any more, nor the visit before that.
    if (number > 0) ptx::mbarrier_wait(ring.queries_empty(), number - 1 & 1);
    if (threadIdx.x % 32 == 0)
      ring.visit(number) = {segment, segment.whole() ? 0 : partial_slot<kRows, kKind>(p, segment, slice) * kRows, true};
    if (segment.key_begin() < segment.key_end()) copy_queries<kRows>(p, segment, ring);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ring.queries_full());
    if (segment.last) return;
    cursor.next();
  }
}

}  // namespace flashmla::cuda::hopper
