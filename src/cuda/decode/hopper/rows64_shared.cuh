// What the three roles of the 64-row kernel share (rows64.cuh): shared memory, barriers, the queue of segments.
#pragma once

#include "cuda/decode/hopper/rows64_layout.h"
#include "cuda/decode/rows.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tile/layout.h"

namespace flashmla::cuda::rows64 {

enum class Role : int { kScores = 0, kLeft = 1, kRight = 2 };
inline constexpr int kFinder = static_cast<int>(Role::kRight) * kRoleThreads;  // the thread that finds segments

// Named barriers; 0 is __syncthreads. Who comes: + waits, - only arrives. Threads are whole warpgroups, so every count
// is 128 a role.
inline constexpr int kScoresBarrier = 1;  // + scores
inline constexpr int kLeftBarrier = 2;    // + left
inline constexpr int kRightBarrier = 3;   // + right
inline constexpr int kLeftPBarrier = 4;   // - scores, + left: P and the factors of a block are there
inline constexpr int kRightPBarrier = 5;  // - scores, + right: the same
inline constexpr int kPFreeBarrier = 6;   // + scores, - left, - right: P and the factors may be overwritten
inline constexpr int kScoresAskedBarrier =
    7;  // - scores, + right: the scores of the block after this one are asked for
inline constexpr int kSegmentDoneBarrier = 8;  // - scores, + left, + right: the inverse row sums are there

__device__ __forceinline__ uint32_t lane() { return threadIdx.x % 32; }
__device__ __forceinline__ int role_warp() { return static_cast<int>(threadIdx.x / 32 % 4); }
// The first of a thread's two rows of an accumulator; the other one is eight below.
__device__ __forceinline__ int own_row() { return 16 * role_warp() + tile::c_fragment_row(lane()); }

// Whether the rows of every tile are heads of one token, one stride apart: a division less for each.
__device__ __forceinline__ bool rows_are_even(const DecodeKernelParams& p) { return p.group.divisor % kRows == 0; }

// A segment as its finder hands it to the roles, which have no registers to walk the slice themselves.
struct Visit {
  Segment segment;
  int64_t partial_row;  // first row of its partial result, if it has one
};
static_assert(sizeof(Visit) <= kVisitBytes);

class Shared {
 public:
  __device__ explicit Shared(unsigned char* memory) : memory_(memory), base_(ptx::shared_address(memory)) {}

  // The same, with addresses in uniform registers, where wgmma wants its descriptors, and computed anew: kept from
  // block to block, the descriptors would take more registers than there are.
  __device__ Shared uniform() const {
    Shared same = *this;
    same.base_ = __reduce_max_sync(~0u, base_);
    return same;
  }

  __device__ uint32_t unit(uint32_t number) const { return base_ + Layout::kRing + number * kUnitBytes; }
  __device__ unsigned char* unit_memory(uint32_t number) const { return memory_ + Layout::kRing + number * kUnitBytes; }
  __device__ uint32_t rope(uint32_t slot) const { return base_ + Layout::kRope + slot * kPanelBytes; }
  __device__ uint32_t queries() const { return base_ + Layout::kQueries; }
  __device__ uint32_t p() const { return base_ + Layout::kP; }
  __device__ float* factors() const { return reinterpret_cast<float*>(memory_ + Layout::kFactors); }
  __device__ float* inverses(uint32_t number) const {  // of segment `number`
    return reinterpret_cast<float*>(memory_ + Layout::kInverses) + number % 2 * kRows;
  }
  // Of the block in a rope slot: bit i is set where box i (2^log2_box keys) has no page.
  __device__ uint32_t& absent(uint32_t slot) const {
    return reinterpret_cast<uint32_t*>(memory_ + Layout::kAbsent)[slot];
  }
  __device__ uint32_t unit_full(uint32_t number) const { return base_ + Layout::kUnitFull + 8 * number; }
  __device__ uint32_t rope_full(uint32_t slot) const { return base_ + Layout::kRopeFull + 8 * slot; }

  // Number `number` of the slice's, for those who have waited for it or for one of its blocks.
  __device__ Visit& visit(uint32_t number) const {
    return reinterpret_cast<Visit*>(memory_ + Layout::kVisitQueue)[number % kVisits];
  }
  __device__ const Segment& segment(uint32_t number) const { return visit(number).segment; }
  __device__ const Segment& wait_for_segment(uint32_t number) const {
    ptx::mbarrier_wait(visit_noted(number), number / kVisits % 2);
    return segment(number);
  }
  __device__ void note_visit(uint32_t number, const Visit& found) const {
    visit(number) = found;
    ptx::mbarrier_arrive(visit_noted(number));
  }
  // Where the walk of the slice stands: its finder's alone.
  template <LineKind kKind>
  __device__ Cursor<kRows, kKind>* cursor() const {
    static_assert(sizeof(Cursor<kRows, kKind>) <= kCursorBytes && alignof(Cursor<kRows, kKind>) <= 8);
    return reinterpret_cast<Cursor<kRows, kKind>*>(memory_ + Layout::kCursor);
  }

  // The slice's number among all lanes' slices: the finder's alone.
  __device__ uint32_t& part() const { return *reinterpret_cast<uint32_t*>(memory_ + Layout::kPart); }

  // One thread, before any of it is used.
  __device__ void init() const {
    for (int unit = 0; unit < kUnits; ++unit) ptx::mbarrier_init(unit_full(unit), kUnitPanels);
    for (int slot = 0; slot < kRopeSlots; ++slot) ptx::mbarrier_init(rope_full(slot), 1);
    for (int number = 0; number < kVisits; ++number) ptx::mbarrier_init(visit_noted(number), 1);
    ptx::mbarrier_init_fence();
  }

 private:
  __device__ uint32_t visit_noted(uint32_t number) const {
    return base_ + Layout::kVisitNoted + 8 * (number % kVisits);
  }

  unsigned char* memory_;
  uint32_t base_;
};

// A segment without keys has one block too, all of it masked: every segment passes through the roles in the same way.
__device__ __forceinline__ int block_count(const Segment& segment) {
  const auto blocks = static_cast<int>((segment.key_end() - segment.key_begin() + kBlockKeys - 1) >> kLog2BlockKeys);
  return static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(max(blocks, 1))));
}

}  // namespace flashmla::cuda::rows64
