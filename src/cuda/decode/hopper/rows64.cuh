// The compute-bound decode kernel of Hopper: tiles of 64 query rows, widths 512 + 64, one KV head.
//
// Budget (clocks per block of 64 rows x 64 keys): tensor work 36 wgmma.m64n64k16 at 32 for S = Q K^T and 8
// wgmma.m64n256k16 at 128 for O += P V: 2,176; softmax 900, of which all but the hand-over of P hides between the
// products of S; K and V 72 KB, which copies bring beside the products for free. A bare loop of this shape takes 2,380
// on an H200 with K and V from L2 and 2,530 from memory, 86 - 91 % of the tensor cores. With 64 rows of one request
// alone, K and V at 1/132 of 4.5 TB/s decide: 3,000 clocks at the clock rate that power then leaves.
//
// Three warpgroups, one of each role, 168 registers a thread:
//   scores  rows64_scores.cuh: S of block j + 1, and between its products the softmax of block j; P and the factors
//           that O is to be multiplied by go to shared memory. Four of nine panels of Q in 64 registers; that
//           leaves room in shared memory for two and a half blocks of keys.
//   left, right  rows64_values.cuh: columns 0 - 255 and 256 - 511 of O in 128 registers each, by the same code: what is
//           fetched for one half is there for the other. Both see the same P. The right half begins its products when S
//           of the next block is asked for: both together would starve S.
// K and V are the same shared tiles, read K-major for S and MN-major for O.
//
// Shared memory is full: keys in a ring of five units of 32 KB (half a block's latent part, L0 R0 L1 R1 ..), the
// rotating parts of two blocks, five panels of Q, P. Copies are made by those who free their place: when the left half
// is through with L of block j it has R of block j + 2 copied there, the right half L of block j + 3 in place of R of
// block j. They do not stop at the end of a segment (line.cuh), nor does anything else but the scores of the next one,
// which wait for its queries: first the panels for the registers, on the way while the last softmax is computed, then
// the others, on the way while the first products run.
//
// Who waits for whom, in the order of a block: named barriers between threads (rows64_shared.cuh), mbarriers for
// copies.
//   unit_full[5], rope_full[2]
//                 copies -> scores. A unit's phase ends with the bytes of its four panels.
//   P free        left and right, when P of block j - 1 is used up -> scores, before they write P of block j.
//   P             scores -> left and right. S of block j is complete too, and its rotating part may be overwritten.
//   scores asked  all products of S of block j + 1 are asked for -> right. Not at the last block of a segment.
//   segment done  scores: the sums are there -> left and right, before they give P of the last block free. They are
//                 read later; the next segment's go to another place, and those of the one after it wait for P of the
//                 next.
//   visit_noted[8]
//                 the thread of the right half that walks the slice -> all, several segments ahead.
#pragma once

#include <new>

#include "cuda/decode/hopper/rows64_scores.cuh"
#include "cuda/decode/hopper/rows64_values.cuh"

namespace flashmla::cuda {

template <typename T, LineKind kKind>
__global__ void __launch_bounds__(kRows64Threads, 1)
    decode_rows64(const __grid_constant__ DecodeKernelParams p, const __grid_constant__ CUtensorMap kv_map) {
#if FLASHMLA_SM90A
  using rows64::Role;
  extern __shared__ __align__(1024) unsigned char smem[];
  const rows64::Shared shared(smem);
  warm_parameters(p);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&kv_map);
    shared.init();
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  Line<rows64::kRows, kKind> line(p);
  const LineTotals totals = line.read();
  const LineCut cut = line_cut<kKind>(p, totals);
  const BlockPlace place = block_place<kKind>(p);
  const uint32_t slice = slice_of_block(place.position, p.positions, cut.slices);
  const uint32_t part = slice * p.lanes.divisor + place.lane;  // of all lanes

  if (slice >= cut.slices) {
    ptx::grid_dependency_launch();
    return;
  }
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  if (warp == rows64::kFinder / 32) {
    const Slices slices(cut);
    const uint32_t begin = slices.begin(slice);
    const Cursor<rows64::kRows, kKind> cursor(p, line.rule(), line.find(begin, cut), cut, begin,
                                              slices.begin(slice + 1), place.lane);
    if (threadIdx.x == rows64::kFinder) {
      shared.part() = part;
      new (shared.cursor<kKind>()) Cursor<rows64::kRows, kKind>(cursor);
      const Segment& segment = cursor.segment();
      shared.note_visit(0, {segment, partial_slot<rows64::kRows, kKind>(p, segment, part) * rows64::kRows});
    }
    __syncwarp();
  }
  const auto role = static_cast<Role>(warp / 4);
  if (role == Role::kScores)
    rows64::scores_role<T>(p, shared);
  else
    rows64::values_role<T, kKind>(p, kv_map, shared);
#else
  __trap();  // table.cc never chooses it here
#endif
}

}  // namespace flashmla::cuda
