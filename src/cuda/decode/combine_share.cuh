// What part of which sum a block of the combine kernel has (combine.cuh).
#pragma once

#include "cuda/decode/rows.cuh"

namespace flashmla::cuda {

namespace portable {

constexpr int kLoadsInFlight = 8;
constexpr int kMostGroups = 8;  // of threads that share a quad of columns

// The share of one block in one tile: columns rank / ranks to (rank + 1) / ranks of the sum over `parts` partial
// results.
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

// A tile that slices share, each with a rank in it; `tile_begin` is its first unit on the line of its lane.
__device__ __forceinline__ Share slice_share(const Segment& segment, const Slices& slices, uint32_t tile_begin,
                                             uint32_t slice, uint32_t lane, uint32_t lanes) {
  Share share;
  const uint32_t first = slices.owner(tile_begin);
  share.segment = segment;
  share.parts = static_cast<int>(slices.owner(tile_begin + segment.units - 1) - first) + 1;
  share.rank = static_cast<int>(slice - first);
  share.ranks = share.parts;
  share.first_slot = 2 * static_cast<int64_t>(first * lanes + lane) + 1;
  share.slot_step = static_cast<int>(2 * lanes);
  share.next_slot = share.first_slot + share.slot_step - 1;
  return share;
}

// A tile cut into splits, all of it one slice's.
template <int kRows>
__device__ __forceinline__ Share split_share(const DecodeKernelParams& p, const Segment& segment) {
  Share share;
  share.segment = segment;
  share.parts = static_cast<int>(segment.units);
  share.first_slot = partial_slot<kRows, LineKind::kAny>(p, segment, 0);
  share.next_slot = share.first_slot + 1;
  return share;
}

}  // namespace portable

}  // namespace flashmla::cuda
