// Decode of few query rows on Hopper: wgmma with swapped operands, keys by bulk tensor copies.
//
// S^T[64 keys x rows] = K Q^T and O^T[64 columns x rows] += V^T P^T put the keys and the columns of V where wgmma has
// its fixed 64, and the query rows where it takes any multiple of 8: nothing is padded further. K and V are one tile in
// shared memory, read K-major for the scores and MN-major for the values.
//
// Budget (H200, 16 rows, clocks per tile of 64 keys): KV bytes 73,728 at 1/132 of 4.65 TB/s = 3,900; tensor work 68
// wgmma.m64n16k16 at 20 = 1,360; softmax and hand-over 450. One consumer warpgroup is therefore enough, and the ring
// decides: 64 KB in flight saturate memory, and one tile is being read meanwhile. docs/kernels/decode-hopper.md.
//
// Warps 0-3 compute (few_rows_tile.cuh); warp 4 walks the segments of the block's slice (line.cuh), hands them over and
// loads Q; warp 5 walks them too and loads keys (loaders.cuh).
#pragma once

#include "cuda/decode/hopper/few_rows_tile.cuh"
#include "cuda/decode/hopper/loaders.cuh"

namespace flashmla::cuda {

template <typename T, int kRows, LineKind kKind>
__global__ void __launch_bounds__(hopper::kFewRowsThreads, 1)
    decode_few_rows(const __grid_constant__ DecodeKernelParams p, const __grid_constant__ CUtensorMap kv_map) {
#if FLASHMLA_SM90A
  using Layout = hopper::FewRowsLayout<kRows>;
  extern __shared__ __align__(1024) unsigned char smem[];
  const hopper::Ring<Layout> ring(smem);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  warm_parameters(p);
  if (warp == hopper::kKeyWarp && ptx::elect_one()) {
    ptx::prefetch_tensor_map(&kv_map);
    ring.init();
  }
  __syncthreads();
  if (warp < hopper::kComputeWarps) {
    hopper::FewRowsTile<T, kRows> tile(p, ring);
    for (uint32_t number = 0;; ++number) {
      const hopper::Visit& visit = tile.begin(number);
      const uint32_t end = visit.segment.key_end();
      for (uint32_t key = visit.segment.key_begin(); key < end; key += hopper::kTileKeys) tile.step(visit, key, end);
      if (visit.work) tile.finish(visit);
      if (visit.segment.last) return;
    }
  }
  ptx::grid_dependency_wait();
  constexpr bool kMayGuess = kKind == LineKind::kOne;
  int32_t guess = -1;
  if (kMayGuess && warp == hopper::kKeyWarp) guess = hopper::guess_page(p, block_place<kKind>(p).position);
  Line<kRows, kKind> line(p);
  const LineTotals totals = line.read();
  const LineCut cut = line_cut<kKind>(p, totals);
  const BlockPlace place = block_place<kKind>(p);
  const uint32_t slice = slice_of_block(place.position, p.positions, cut.slices);

  if (slice >= cut.slices) {
    if (warp == hopper::kQueryWarp) hopper::send_home(ring);
    return ptx::grid_dependency_launch();
  }
  const Slices slices(cut);
  const uint32_t begin = slices.begin(slice);
  const Cursor<kRows, kKind> cursor(p, line.rule(), line.find(begin, cut), cut, begin, slices.begin(slice + 1),
                                    place.lane);
  if (warp == hopper::kKeyWarp) {
    // Slices of one unit of one tile: the guess is right, one half of the warp's or the other's.
    const bool guessed = kMayGuess && totals.tiles == 1 && totals.units == cut.slices;
    const uint32_t half = slice == hopper::guessed_slice(p, place.position, 0) ? 0 : 1;
    guess = __shfl_sync(~0u, guess, half * hopper::kGuessLanes + threadIdx.x % hopper::kGuessLanes);
    return hopper::load_keys(p, kv_map, cursor, guess, guessed, ring);
  }
  hopper::load_queries(p, cursor, slice * p.lanes.divisor + place.lane, ring);
#else
  __trap();  // table.cc never chooses it here
#endif
}

}  // namespace flashmla::cuda
