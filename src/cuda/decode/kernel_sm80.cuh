// The portable decode kernel: mma.sync and cp.async, correct on every GPU since sm_80.
//
// Budget (H200, 16 rows, clocks per step of 64 keys): KV bytes 73,728 at 1/132 of 4.65 TB/s = 3,900; shared-memory
// traffic K 72 KB + V 64 KB + scores and P 38 KB = 1,400; tensor work 68 mma.m16n8k16 a warp, 1,100; the chain of
// copies, scores, softmax and values about 3,900. At low batch the way to the first bytes and out of the last ones
// counts, where every instruction is fetched for the first time: one code site for each thing, no unrolled prologue.
// docs/kernels/decode.md.
//
// A block of 8 warps walks the segments of its slice (line.cuh). A segment is one tile of query rows against a run of
// keys. Everything comes through one ring in shared memory: for each segment its tile of Q in one stage, then its keys
// in pairs of stages. Per pair:
//   scores   each warp: 32 keys x a quarter of the k dimension, for all rows; partial sums to shared memory
//   softmax  threads [row][lane]: sum, scale, mask, running maximum, P to shared memory, O's factor published
//   values   each warp: 64 of the 512 columns of V, for all rows; O stays in registers
// K and V are the same shared tile, read twice.
#pragma once

#include "cuda/decode/loader.cuh"
#include "cuda/decode/row_tile.cuh"

namespace flashmla::cuda {

// The fields of a DecodeConfig one by one: nvcc 13.0 cannot write host stubs of kernels with class-type parameters.
template <typename T, int kRows, Widths kWidths>
__global__ void __launch_bounds__(DecodeConfig{kRows, kWidths}.threads(), 1)
    decode_portable(const __grid_constant__ DecodeKernelParams p) {
  constexpr DecodeConfig C{kRows, kWidths};
#ifdef __CUDA_ARCH__
  if constexpr (!C.runs_on(__CUDA_ARCH__ / 10)) return;  // table.cc never chooses it there
#endif
  extern __shared__ __align__(128) unsigned char smem[];
  __shared__ Segment segments[portable::kSegments];
  warm_parameters(p);
  ptx::grid_dependency_wait();
  Line<C.rows, LineKind::kAny> line(p);
  const LineTotals totals = line.read();
  const LineCut cut = line_cut<LineKind::kAny>(p, totals);
  const uint32_t slice = slice_of_block(blockIdx.x, gridDim.x, cut.slices);
  if (slice >= cut.slices) {
    ptx::grid_dependency_launch();
    return;
  }
  const Slices slices(cut);
  const uint32_t begin = slices.begin(slice);
  const Cursor<C.rows, LineKind::kAny> cursor(p, line.rule(), line.find(begin, cut), cut, begin,
                                              slices.begin(slice + 1));
  portable::Loader<C> loader(p, cursor, smem, segments);
  portable::Tile<T, C> tile(p, smem);
  const auto after = [&](int stage) { return stage + 1 == p.stages ? 0 : stage + 1; };
  int filled = 0;         // stage that is issued next
  int taken = 0;          // stage that is used next
  int vacant = p.stages;  // stages that are free
  int current = 0;        // segment
  bool fresh = true;      // its tile of queries comes next
  uint32_t key = 0;
  for (;;) {
    for (; vacant > 0; --vacant) {
      loader.issue(filled);
      filled = after(filled);
    }
    ptx::grid_dependency_launch();
    portable::wait_for_stages(p.stages - (fresh ? 1 : 2));
    __syncthreads();
    const Segment& segment = segments[current];
    if (fresh) {
      vacant = 1;
      tile.begin(segment, taken);
      key = segment.key_begin();
    } else {
      vacant = 2;
      const int first = taken;
      taken = after(taken);
      tile.step(first, taken, key);
      key += kStepKeys;
    }
    fresh = key >= segment.key_end();
    if (fresh) {
      tile.finish(segment, slice, taken);
      if (segment.last) break;
      current = (current + 1) % portable::kSegments;
    }
    taken = after(taken);
    __syncthreads();
  }
}

}  // namespace flashmla::cuda
