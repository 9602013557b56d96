// Index math of tiles in shared memory and of mma.m16n8k16 fragments: pure, tested without a GPU (layout_test.cc).
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define FLASHMLA_HD __host__ __device__ __forceinline__
#define FLASHMLA_HD_CALL __host__ __device__ __noinline__  // rare: kept out of line, so that hot code stays short
#else
#define FLASHMLA_HD inline
#define FLASHMLA_HD_CALL inline
#endif

namespace flashmla::tile {

// Shared memory hands out 16-byte chunks; eight of them, 128 bytes, pass through all banks once.
inline constexpr int kChunkBytes = 16;
inline constexpr int kPanelChunks = 8;
inline constexpr int kPanelBytes = kPanelChunks * kChunkBytes;

// Byte offset of chunk `chunk` of row `row` in a tile whose rows are `pitch` bytes, a multiple of 128, apart. Inside
// each 128-byte panel the chunks are permuted by the row, so that one chunk column of eight consecutive rows (what
// ldmatrix reads) lies in eight different bank groups.
FLASHMLA_HD constexpr int swizzled(int row, int chunk, int pitch) {
  return row * pitch + (chunk / kPanelChunks) * kPanelBytes + ((chunk ^ row) % kPanelChunks) * kChunkBytes;
}

struct RowChunk {
  int row;
  int chunk;
};

// Which row and chunk lane `lane` names to ldmatrix.x4 so that the four results are ...

// ... the A fragment of m16n8k16: registers (rows 0-7, k 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15).
FLASHMLA_HD constexpr RowChunk a_fragment_lane(int lane) { return {lane % 16, lane / 16}; }

// ... the B fragments of two n8 tiles, from a tile that holds n rows of k values: (n 0-7: b0, b1), (n 8-15: b0, b1).
FLASHMLA_HD constexpr RowChunk b_fragment_lane(int lane) { return {lane % 8 + lane / 16 * 8, lane / 8 % 2}; }

// ... the same from a tile that holds k rows of n values, with ldmatrix.trans.
FLASHMLA_HD constexpr RowChunk b_trans_fragment_lane(int lane) { return {lane % 16, lane / 16}; }

// Accumulator of m16n8k16: registers 0, 1 are row lane / 4, columns 2 (lane % 4) and the next; 2, 3 are eight rows
// below.
FLASHMLA_HD constexpr int c_fragment_row(int lane) { return lane / 4; }
FLASHMLA_HD constexpr int c_fragment_column(int lane) { return lane % 4 * 2; }

}  // namespace flashmla::tile
