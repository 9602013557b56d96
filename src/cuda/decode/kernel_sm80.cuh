// The portable decode kernel: mma.sync and cp.async, correct on every GPU since sm_80.
//
// Budget (H200, 16 rows x 64 keys, clocks per block): KV bytes 73,728 at 1/132 of 4.65 TB/s = 3,900; shared-memory
// traffic K 72 KB + V 64 KB + scores and P 20 KB = 1,250; tensor work 68 mma.m16n8k16 a warp, about 700. So the loop
// waits for memory; what is tuned is the way to the first bytes and out of the last ones. docs/kernels/decode.md.
//
// A block of 8 warps walks the segments of its slice (line.cuh). A segment is one tile of query rows against a run of
// keys, taken in blocks of kTokens keys through a ring of two stages in shared memory. Per KV block:
//   scores   each warp: 16 keys x its share of the k dimension, for all rows; partial sums to shared memory
//   softmax  threads [row][lane]: sum, scale, mask, running maximum, P to shared memory, O's factor published
//   values   each warp: 64 of the 512 columns of V, for all rows; O stays in registers
// K and V are the same shared tile, read twice.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/decode/line.cuh"
#include "cuda/tile/layout.h"

namespace flashmla::cuda {

namespace portable {

constexpr int kSlab = kMaxLatent / kWarps;  // columns of V of a warp

__device__ __forceinline__ uint32_t pack(float low, float high, __nv_bfloat16 /*element*/) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t pack(float low, float high, __half /*element*/) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// d_qk as the loops see it: constants where the kernel is tuned for them.
template <DecodeConfig C>
struct Extent {
  const DecodeKernelParams& p;
  __device__ int latent() const { return C.widths == Widths::kTuned ? kMaxLatent : p.latent_dim; }
  __device__ int width() const { return C.widths == Widths::kTuned ? kMaxWidth : p.latent_dim + p.rope_dim; }
  __device__ int k_steps() const { return (width() + 15) / 16; }
  __device__ int panels() const { return (width() + 63) / 64; }
};

// Brings KV blocks into the ring, ahead of the computation and over the ends of segments.
template <DecodeConfig C>
class Loader {
 public:
  __device__ Loader(const DecodeKernelParams& params, const Cursor<C.rows>& cursor, unsigned char* smem)
      : p_(params), cursor_(cursor), smem_(smem), policy_(ptx::evict_first_policy()) {
    start_segment();
    read_ids();
  }

  // Issues the next block into `stage`, as one group of copies; an empty group once the slice is through.
  __device__ void issue(int stage) {
    if (!cursor_.done()) {
      const Extent<C> extent{p_};
      const uint32_t tile = ptx::shared_address(smem_) + stage * C.kv_stage_bytes();
      const int lane = threadIdx.x % 8;
#pragma unroll
      for (int i = 0; i < kRowsPerThread; ++i) {
        const int row = threadIdx.x / 8 + i * kRowGroups;
        const bool valid = id_[i] >= 0 && id_[i] < p_.pages;
        const char* source = static_cast<const char*>(p_.kv);
        if (valid) {
          const int64_t element = id_[i] * p_.kv_page_stride + place_[i] * p_.kv_token_stride +
                                  cursor_.segment().kv_head * p_.kv_head_stride + lane * 8;
          source += element * kElementBytes;
        }
        const uint32_t target = tile + tile::swizzled(row, lane, kTilePitch);
#pragma unroll
        for (int panel = 0; panel < kMaxWidth / 64; ++panel) {
          if (panel >= extent.panels()) break;
          const bool inside = C.widths == Widths::kTuned || panel * 64 + lane * 8 < extent.width();
          ptx::cp_async_16(target + panel * tile::kPanelBytes, source + (valid && inside ? panel * 128 : 0),
                           valid && inside, policy_);
        }
        if (lane == 0) smem_[C.valid_offset() + stage * C.tokens + row] = valid;
      }
      if (key_end_ - key_ > C.tokens) {
        key_ += C.tokens;
      } else {
        cursor_.next();
        start_segment();
      }
      read_ids();
    }
    ptx::cp_async_commit();
  }

 private:
  static constexpr int kRowGroups = kThreads / 8;  // eight lanes copy 128 bytes of a row side by side
  static constexpr int kRowsPerThread = C.tokens / kRowGroups;

  // Segments without keys have no blocks.
  __device__ void start_segment() {
    while (!cursor_.done() && cursor_.segment().key_begin() >= cursor_.segment().key_end()) cursor_.next();
    if (cursor_.done()) return;
    key_ = cursor_.segment().key_begin();
    key_end_ = cursor_.segment().key_end();
  }

  // Page ids of the block that is issued next; they arrive while the current one is computed.
  __device__ void read_ids() {
    if (cursor_.done()) return;
    const int32_t* row = p_.page_table + cursor_.segment().request * p_.table_stride;
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      const int32_t key = key_ + threadIdx.x / 8 + i * kRowGroups;
      id_[i] = -1;
      if (key < key_ || key >= key_end_) continue;  // the first comparison: past 2^31
      const int32_t page = p_.page_size.quotient(key);
      place_[i] = key - page * static_cast<int32_t>(p_.page_size.divisor);
      id_[i] = ptx::load_l2(row + page);
    }
  }

  const DecodeKernelParams& p_;
  Cursor<C.rows> cursor_;
  unsigned char* smem_;
  uint64_t policy_;
  int32_t key_ = 0;
  int32_t key_end_ = 0;
  int32_t id_[kRowsPerThread] = {};
  int32_t place_[kRowsPerThread] = {};
};

// Where row `row` of a segment's tile lies: token of the request and head of the call.
struct RowPlace {
  int32_t token;
  int32_t head;
};
template <int kRows>
__device__ __forceinline__ RowPlace row_place(const DecodeKernelParams& p, const Segment& segment, int row) {
  const int32_t index = segment.row_tile * kRows + row;
  const int32_t token = p.group.quotient(index);
  const auto group = static_cast<int32_t>(p.group.divisor);
  return {token, segment.kv_head * group + index - token * group};
}
// Rows of the tile that exist.
template <int kRows>
__device__ __forceinline__ int tile_rows(const DecodeKernelParams& p, const Segment& segment) {
  const int32_t left = segment.size.tokens * static_cast<int32_t>(p.group.divisor) - segment.row_tile * kRows;
  return left < kRows ? left : kRows;
}
__device__ __forceinline__ int64_t offset_of(const QueryStrides& stride, const Segment& segment, RowPlace place) {
  return segment.request * stride.batch + (static_cast<int64_t>(segment.size.first_token) + place.token) * stride.token +
         place.head * stride.head;
}

// The tile of queries, rows that do not exist as zeros.
template <DecodeConfig C>
__device__ void load_queries(const DecodeKernelParams& p, const Segment& segment, unsigned char* q_smem) {
  const Extent<C> extent{p};
  const int rows = tile_rows<C.rows>(p, segment);
  constexpr int kRowChunks = kMaxWidth / 8;
  constexpr int kChunks = C.rows * kRowChunks;
  constexpr int kPerThread = (kChunks + kThreads - 1) / kThreads;
  uint4 value[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int index = threadIdx.x + i * kThreads;
    const int row = index / kRowChunks;
    const int column = index % kRowChunks * 8;
    value[i] = make_uint4(0, 0, 0, 0);
    if (row >= rows || column >= extent.width()) continue;
    const RowPlace place = row_place<C.rows>(p, segment, row);
    const bool rope = column >= extent.latent();
    const auto* base = static_cast<const char*>(rope ? p.q_rope : p.q);
    const int64_t element = offset_of(rope ? p.q_rope_stride : p.q_stride, segment, place) +
                            (rope ? column - extent.latent() : column);
    value[i] = ptx::load_l2(reinterpret_cast<const uint4*>(base + element * kElementBytes));
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int index = threadIdx.x + i * kThreads;
    if (index >= kChunks) continue;
    const int at = tile::swizzled(index / kRowChunks, index % kRowChunks, kTilePitch);
    *reinterpret_cast<uint4*>(q_smem + at) = value[i];
  }
}

// State of one tile as its threads hold it.
template <typename T, DecodeConfig C>
class Tile {
 public:
  __device__ Tile(const DecodeKernelParams& params, const Segment& segment, unsigned char* smem)
      : p_(params), segment_(segment), smem_(smem), base_(ptx::shared_address(smem)) {
    const RowPlace place = row_place<C.rows>(p_, segment_, softmax_row());
    int32_t limit = segment_.size.keys;
    if (p_.causal) limit = segment_.size.keys - segment_.size.tokens + place.token + 1;
    const int32_t end = segment_.key_end();
    limit_ = limit < end ? limit : end;
    load_queries<C>(p_, segment_, smem_ + C.q_offset());
    __syncthreads();
    if constexpr (C.q_in_registers()) {
#pragma unroll
      for (int i = 0; i < C.k_steps(); ++i) {
        if (k_step(i) < Extent<C>{p_}.k_steps()) ptx::ldmatrix_x4(q_frag_[i], q_address(i, 0));
      }
    }
  }

  // One KV block, complete in `stage`; `key` is its first key.
  __device__ void step(int stage, int32_t key) {
    scores(stage);
    __syncthreads();
    softmax(stage, key);
    __syncthreads();
    values(stage);
  }

  __device__ void finish(int slice) {
#pragma unroll
    for (int step = 1; step < C.lanes_per_row(); step *= 2) l_ += __shfl_xor_sync(~0u, l_, step);
    if (segment_.whole())
      write_result();
    else
      write_partial(partial_slot<C.rows>(p_, segment_, slice));
    __syncthreads();  // the next tile overwrites what the last threads may still read
  }

 private:
  static constexpr int kSlabTiles = kSlab / 8;  // n8 tiles of a warp's columns

  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int softmax_row() { return threadIdx.x / C.lanes_per_row(); }
  __device__ static int softmax_token() { return threadIdx.x % C.lanes_per_row() * C.tokens_per_lane(); }
  // k steps are dealt to the warps of a token group in turn.
  __device__ static int k_share() { return warp() / C.token_groups(); }
  __device__ static int k_step(int i) { return C.k_splits() * i + k_share(); }
  // Address of a 16 x 16 block of a [row][k] tile at k step `step`, for this lane.
  __device__ uint32_t block_address(int tile_offset, int row, int half, int step) const {
    return base_ + tile_offset + tile::swizzled(row, 2 * step + half, kTilePitch);
  }
  __device__ uint32_t q_address(int i, int row_tile) const {
    const tile::RowChunk at = tile::a_fragment_lane(lane());
    return block_address(C.q_offset(), 16 * row_tile + at.row, at.chunk, k_step(i));
  }
  __device__ float* scores_smem() const { return reinterpret_cast<float*>(smem_ + C.score_offset()); }
  __device__ float* factor_smem() const { return reinterpret_cast<float*>(smem_ + C.factor_offset()); }

  __device__ void scores(int stage) {
    const Extent<C> extent{p_};
    const int group = warp() % C.token_groups();
    const tile::RowChunk at = tile::b_fragment_lane(lane());
    // Even and odd k steps add up apart: shorter chains of dependent products.
    float s[2][C.row_tiles()][2][4] = {};
#pragma unroll
    for (int i = 0; i < C.k_steps(); ++i) {
      if (C.widths == Widths::kAny && k_step(i) >= extent.k_steps()) break;
      uint32_t k_frag[4];
      ptx::ldmatrix_x4(k_frag, block_address(stage * C.kv_stage_bytes(), 16 * group + at.row, at.chunk, k_step(i)));
#pragma unroll
      for (int r = 0; r < C.row_tiles(); ++r) {
        if constexpr (!C.q_in_registers()) ptx::ldmatrix_x4(q_frag_[0], q_address(i, r));
        const uint32_t(&q)[4] = q_frag_[C.q_in_registers() ? i : 0];
        ptx::mma_m16n8k16(s[i % 2][r][0], q, k_frag[0], k_frag[1], T());
        ptx::mma_m16n8k16(s[i % 2][r][1], q, k_frag[2], k_frag[3], T());
      }
    }
    float* out = scores_smem() + k_share() * C.rows * C.score_pitch() + 16 * group + tile::c_fragment_column(lane());
#pragma unroll
    for (int r = 0; r < C.row_tiles(); ++r) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float(&even)[4] = s[0][r][n];
        const float(&odd)[4] = s[1][r][n];
        float* at_row = out + (16 * r + tile::c_fragment_row(lane())) * C.score_pitch() + 8 * n;
        *reinterpret_cast<float2*>(at_row) = make_float2(even[0] + odd[0], even[1] + odd[1]);
        *reinterpret_cast<float2*>(at_row + 8 * C.score_pitch()) = make_float2(even[2] + odd[2], even[3] + odd[3]);
      }
    }
  }

  __device__ void softmax(int stage, int32_t key) {
    constexpr int kTokens = C.tokens_per_lane();
    const int row = softmax_row();
    const int token = softmax_token();
    const float* in = scores_smem() + row * C.score_pitch() + token;
    const unsigned char* valid = smem_ + C.valid_offset() + stage * C.tokens + token;
    float s[kTokens] = {};
    float largest = -INFINITY;
#pragma unroll
    for (int k = 0; k < C.k_splits(); ++k) {
#pragma unroll
      for (int t = 0; t < kTokens; t += 2) {
        const float2 part = *reinterpret_cast<const float2*>(in + k * C.rows * C.score_pitch() + t);
        s[t] += part.x;
        s[t + 1] += part.y;
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const bool visible = valid[t] != 0 && key + token + t < limit_;
      s[t] = visible ? s[t] * p_.scale_log2 : -INFINITY;
      largest = fmaxf(largest, s[t]);
    }
#pragma unroll
    for (int step = 1; step < C.lanes_per_row(); step *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const float m = fmaxf(m_, largest);
    const float reference = m == -INFINITY ? 0.0f : m;  // a row that has seen no key yet
    const float factor = ptx::exp2_approx(m_ - reference);
    m_ = m;
    l_ *= factor;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      s[t] = ptx::exp2_approx(s[t] - reference);
      l_ += s[t];
    }
    if (token == 0) factor_smem()[row] = factor;
    unsigned char* p_row = smem_ + C.p_offset() + tile::swizzled(row, token / 8, C.p_pitch()) + token % 8 * 2;
#pragma unroll
    for (int t = 0; t < kTokens; t += 2) *reinterpret_cast<uint32_t*>(p_row + 2 * t) = pack(s[t], s[t + 1], T());
  }

  __device__ void values(int stage) {
    if (warp() * kSlab >= Extent<C>{p_}.latent()) return;
#pragma unroll
    for (int r = 0; r < C.row_tiles(); ++r) {
      const float low = factor_smem()[16 * r + tile::c_fragment_row(lane())];
      const float high = factor_smem()[16 * r + tile::c_fragment_row(lane()) + 8];
#pragma unroll
      for (int n = 0; n < kSlabTiles; ++n) {
        o_[r][n][0] *= low;
        o_[r][n][1] *= low;
        o_[r][n][2] *= high;
        o_[r][n][3] *= high;
      }
    }
    const tile::RowChunk p_at = tile::a_fragment_lane(lane());
    const tile::RowChunk v_at = tile::b_trans_fragment_lane(lane());
#pragma unroll
    for (int k = 0; k < C.tokens / 16; ++k) {
      uint32_t p_frag[C.row_tiles()][4];
#pragma unroll
      for (int r = 0; r < C.row_tiles(); ++r) {
        ptx::ldmatrix_x4(p_frag[r], base_ + C.p_offset() +
                                        tile::swizzled(16 * r + p_at.row, 2 * k + p_at.chunk, C.p_pitch()));
      }
#pragma unroll
      for (int n = 0; n < kSlabTiles; n += 2) {
        uint32_t v_frag[4];
        ptx::ldmatrix_x4_trans(v_frag, base_ + stage * C.kv_stage_bytes() +
                                           tile::swizzled(16 * k + v_at.row, warp() * kSlab / 8 + n + v_at.chunk,
                                                          kTilePitch));
#pragma unroll
        for (int r = 0; r < C.row_tiles(); ++r) {
          ptx::mma_m16n8k16(o_[r][n], p_frag[r], v_frag[0], v_frag[1], T());
          ptx::mma_m16n8k16(o_[r][n + 1], p_frag[r], v_frag[2], v_frag[3], T());
        }
      }
    }
  }

  // Rows as they are, with their maxima and sums, for the combine kernel.
  __device__ void write_partial(int64_t slot) {
    const int rows = tile_rows<C.rows>(p_, segment_);
    const int latent = Extent<C>{p_}.latent();
    if (softmax_token() == 0 && softmax_row() < rows) p_.partial_ml[slot * C.rows + softmax_row()] = make_float2(m_, l_);
    if (warp() * kSlab >= latent) return;
    // Neighbouring lanes swap halves, so that each holds four columns of one row: 16-byte stores.
    const bool upper = lane() % 2 != 0;
    float* out = p_.partial_out + slot * C.rows * latent + warp() * kSlab + lane() % 4 / 2 * 4;
#pragma unroll
    for (int r = 0; r < C.row_tiles(); ++r) {
      const int row = 16 * r + tile::c_fragment_row(lane()) + (upper ? 8 : 0);
#pragma unroll
      for (int n = 0; n < kSlabTiles; ++n) {
        float(&o)[4] = o_[r][n];
        const float other0 = __shfl_xor_sync(~0u, upper ? o[0] : o[2], 1);
        const float other1 = __shfl_xor_sync(~0u, upper ? o[1] : o[3], 1);
        const float4 v = upper ? make_float4(other0, other1, o[2], o[3]) : make_float4(o[0], o[1], other0, other1);
        const int column = warp() * kSlab + 8 * n;
        if (row < rows && (C.widths == Widths::kTuned || column < latent))
          *reinterpret_cast<float4*>(out + static_cast<int64_t>(row) * latent + 8 * n) = v;
      }
    }
  }

  __device__ void write_result() {
    const int rows = tile_rows<C.rows>(p_, segment_);
    const int latent = Extent<C>{p_}.latent();
    const bool empty = l_ == 0.0f;
    if (softmax_token() == 0) {
      factor_smem()[C.rows + softmax_row()] = empty ? 0.0f : 1.0f / l_;
      if (p_.lse != nullptr && softmax_row() < rows) {
        const RowPlace place = row_place<C.rows>(p_, segment_, softmax_row());
        p_.lse[offset_of(p_.lse_stride, segment_, place)] = empty ? p_.empty_lse : lse_of(m_, l_);
      }
    }
    __syncthreads();
    stage_result();
    __syncthreads();
    T* out = static_cast<T*>(p_.out);
    for (int row = warp(); row < rows; row += kWarps) {
      T* out_row = out + offset_of(p_.out_stride, segment_, row_place<C.rows>(p_, segment_, row));
      for (int column = lane() * 8; column < latent; column += 32 * 8) {
        const unsigned char* from = smem_ + C.q_offset() + tile::swizzled(row, column / 8, kTilePitch);
        if (p_.out_aligned) {
          *reinterpret_cast<uint4*>(out_row + column) = *reinterpret_cast<const uint4*>(from);
          continue;
        }
        for (int i = 0; i < 8; ++i) out_row[column + i] = reinterpret_cast<const T*>(from)[i];
      }
    }
  }

  // O / l, rounded, in the place of Q.
  __device__ void stage_result() {
#pragma unroll
    for (int r = 0; r < C.row_tiles(); ++r) {
      const int row = 16 * r + tile::c_fragment_row(lane());
      const float low = factor_smem()[C.rows + row];
      const float high = factor_smem()[C.rows + row + 8];
#pragma unroll
      for (int n = 0; n < kSlabTiles; ++n) {
        const int chunk = warp() * kSlab / 8 + n;
        const float(&o)[4] = o_[r][n];
        unsigned char* at = smem_ + C.q_offset() + tile::c_fragment_column(lane()) * 2;
        *reinterpret_cast<uint32_t*>(at + tile::swizzled(row, chunk, kTilePitch)) =
            pack(o[0] * low, o[1] * low, T());
        *reinterpret_cast<uint32_t*>(at + tile::swizzled(row + 8, chunk, kTilePitch)) =
            pack(o[2] * high, o[3] * high, T());
      }
    }
  }

 public:
  static __device__ float lse_of(float m, float l) { return (m + log2f(l)) * 0.6931471805599453f; }

 private:
  const DecodeKernelParams& p_;
  const Segment segment_;
  unsigned char* smem_;
  uint32_t base_;
  int32_t limit_ = 0;    // keys before it are visible to this thread's softmax row
  float m_ = -INFINITY;  // running maximum of that row, scaled, in log2 units
  float l_ = 0;          // sum over this lane's tokens, relative to m_
  uint32_t q_frag_[C.q_in_registers() ? C.k_steps() : 1][4];
  float o_[C.row_tiles()][kSlabTiles][4] = {};
};

}  // namespace portable

// The fields of a DecodeConfig one by one: nvcc 13.0 cannot write host stubs of kernels with class-type parameters.
template <typename T, int kRows, int kTokens, Widths kWidths>
__global__ void __launch_bounds__(kThreads, 1) decode_portable(const __grid_constant__ DecodeKernelParams p) {
  constexpr DecodeConfig C{kRows, kTokens, kWidths};
  extern __shared__ __align__(128) unsigned char smem[];
  ptx::grid_dependency_wait();
  Line<C.rows> line(p);
  const LineTotals totals = line.read();
  const int slices = slice_count(totals, p.blocks, p.few_units, p.least_units);
  const int slice = slice_of_block(blockIdx.x, gridDim.x, slices);
  if (slice >= slices) {
    ptx::grid_dependency_launch();
    return;
  }
  const Slices cut(totals.units, slices);
  const int64_t begin = cut.begin(slice);
  Cursor<C.rows> cursor(p, line.find(begin), begin, cut.begin(slice + 1));
  portable::Loader<C> loader(p, cursor, smem);
  loader.issue(0);
  loader.issue(1);
  ptx::grid_dependency_launch();
  int stage = 0;
  for (; !cursor.done(); cursor.next()) {
    portable::Tile<T, C> tile(p, cursor.segment(), smem);
    const int32_t key_end = cursor.segment().key_end();
    for (int64_t key = cursor.segment().key_begin(); key < key_end; key += C.tokens) {
      ptx::cp_async_wait<kStages - 1>();
      __syncthreads();
      tile.step(stage, static_cast<int32_t>(key));
      __syncthreads();
      loader.issue(stage);
      stage = (stage + 1) % kStages;
    }
    tile.finish(slice);
  }
}

}  // namespace flashmla::cuda
