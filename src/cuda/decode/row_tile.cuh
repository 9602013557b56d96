// One tile of query rows: scores, softmax, values, and what becomes of them (kernel_sm80.cuh).
#pragma once

#include "cuda/decode/rows.cuh"
#include "cuda/tile/layout.h"

namespace flashmla::cuda::portable {

// One tile of query rows on its way through its keys, as the block's threads hold it.
template <typename T, DecodeConfig C>
class Tile {
 public:
  __device__ Tile(const DecodeKernelParams& params, unsigned char* smem)
      : p_(params), smem_(smem), base_(ptx::shared_address(smem)) {}

  // Takes the segment's queries from `stage`.
  __device__ void begin(const Segment& segment, int stage) {
    const RowPlace place = row_place<C.rows>(p_, segment, softmax_row());
    int32_t limit = segment.size.keys;
    if (p_.causal) limit = segment.size.keys - segment.size.tokens + place.token + 1;
    limit_ = min(static_cast<uint32_t>(max(limit, 0)), segment.key_end());
    m_ = -INFINITY;
    l_ = 0;
#pragma unroll
    for (int r = 0; r < C.row_tiles(); ++r) {
#pragma unroll
      for (int n = 0; n < kSlabTiles; ++n) o_[r][n][0] = o_[r][n][1] = o_[r][n][2] = o_[r][n][3] = 0;
    }
#pragma unroll
    for (int r = 0; r < C.row_tiles(); ++r) {
      const uint32_t q_at = k_address(stage_offset(stage), tile::a_fragment_lane(lane()), 16 * r);
#pragma unroll
      for (int i = 0; i < C.k_steps(); ++i) ptx::ldmatrix_x4(q_frag_[r][i], q_at + i * tile::kPanelBytes);
    }
  }

  // One step: keys from `key` on, complete in stages `first` and `second`.
  __device__ void step(int first, int second, uint32_t key) {
    scores(first, second);
    __syncthreads();
    const bool changed = softmax(first, second, key);
    values(first, second, __syncthreads_or(changed) != 0);
  }

  // Writes what the segment came to; `stage` is free to be overwritten.
  __device__ void finish(const Segment& segment, uint32_t slice, int stage) {
#pragma unroll
    for (int step = 1; step < C.lanes_per_row(); step *= 2) l_ += __shfl_xor_sync(~0u, l_, step);
    if (segment.whole())
      write_result(segment, stage);
    else
      write_partial(segment, partial_slot<C.rows, LineKind::kAny>(p_, segment, slice));
  }

 private:
  static constexpr int kSlabTiles = C.slab() / 8;  // n8 tiles of a warp's columns

  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int softmax_row() { return threadIdx.x / C.lanes_per_row(); }
  __device__ static int softmax_key() { return threadIdx.x % C.lanes_per_row() * C.keys_per_lane(); }
  // k steps are dealt to the warps of a key group in turn.
  __device__ static int k_share() { return warp() / C.key_groups(); }
  __device__ static int k_step(int i) { return C.k_splits() * i + k_share(); }
  __device__ static int stage_offset(int stage) { return C.ring_offset() + stage * kStageBytes; }
  // Address of a 16 x 16 block of a [row][k] tile at this warp's first k step, for this lane. Four k steps are a
  // 128-byte panel, so with four k splits the others follow a panel apart.
  static_assert(C.k_splits() == 4);
  __device__ uint32_t k_address(int tile_offset, tile::RowChunk lane_at, int row) const {
    return base_ + tile_offset + tile::swizzled(row + lane_at.row, 2 * k_share() + lane_at.chunk, kTilePitch);
  }
  __device__ float* scores_smem() const { return reinterpret_cast<float*>(smem_); }
  __device__ float* factor_smem() const { return reinterpret_cast<float*>(smem_ + C.factor_offset()); }

  __device__ void scores(int first, int second) {
    const Extent<C> extent{p_};
    constexpr int kKeyTiles = C.warp_keys() / 8;  // n8 tiles
    const int key = warp() % C.key_groups() * C.warp_keys();
    uint32_t k_at[kKeyTiles / 2];
#pragma unroll
    for (int n = 0; n < kKeyTiles / 2; ++n) {
      k_at[n] = k_address(stage_offset(key < kStageRows ? first : second), tile::b_fragment_lane(lane()),
                          key % kStageRows + 16 * n);
    }
    float s[C.row_tiles()][kKeyTiles][4] = {};
#pragma unroll
    for (int i = 0; i < C.k_steps(); ++i) {
      if (C.widths == Widths::kAny && k_step(i) >= extent.k_steps()) break;
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t k_frag[4];
        ptx::ldmatrix_x4(k_frag, k_at[n / 2] + i * tile::kPanelBytes);
#pragma unroll
        for (int r = 0; r < C.row_tiles(); ++r) {
          ptx::mma_m16n8k16(s[r][n], q_frag_[r][i], k_frag[0], k_frag[1], T());
          ptx::mma_m16n8k16(s[r][n + 1], q_frag_[r][i], k_frag[2], k_frag[3], T());
        }
      }
    }
    float* out = scores_smem() + k_share() * C.rows * C.score_pitch() + key + tile::c_fragment_column(lane());
#pragma unroll
    for (int r = 0; r < C.row_tiles(); ++r) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        const float(&sum)[4] = s[r][n];
        float* at_row = out + (16 * r + tile::c_fragment_row(lane())) * C.score_pitch() + 8 * n;
        *reinterpret_cast<float2*>(at_row) = make_float2(sum[0], sum[1]);
        *reinterpret_cast<float2*>(at_row + 8 * C.score_pitch()) = make_float2(sum[2], sum[3]);
      }
    }
  }

  // Whether this thread's row has a new maximum.
  __device__ bool softmax(int first, int second, uint32_t key) {
    constexpr int kKeys = C.keys_per_lane();
    const int row = softmax_row();
    const int own_key = softmax_key();
    const float* in = scores_smem() + row * C.score_pitch() + own_key;
    const int stage = own_key < kStageRows ? first : second;
    const auto* valid = reinterpret_cast<const uint32_t*>(smem_ + C.valid_offset() + stage * kStageRows +
                                                          own_key % kStageRows);  // a byte a key
    float s[kKeys] = {};
    float largest = -INFINITY;
#pragma unroll
    for (int k = 0; k < C.k_splits(); ++k) {
#pragma unroll
      for (int t = 0; t < kKeys; t += 4) {
        const float4 part = *reinterpret_cast<const float4*>(in + k * C.rows * C.score_pitch() + t);
        s[t] += part.x;
        s[t + 1] += part.y;
        s[t + 2] += part.z;
        s[t + 3] += part.w;
      }
    }
#pragma unroll
    for (int t = 0; t < kKeys; ++t) {
      const bool visible = (valid[t / 4] >> (t % 4 * 8) & 1) != 0 && key + own_key + t < limit_;
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
    for (int t = 0; t < kKeys; ++t) {
      s[t] = ptx::exp2_approx(s[t] - reference);
      l_ += s[t];
    }
    if (own_key == 0) factor_smem()[row] = factor;
    unsigned char* p_row = smem_ + C.p_offset() + tile::swizzled(row, own_key / 8, C.p_pitch()) + own_key % 8 * 2;
#pragma unroll
    for (int t = 0; t < kKeys; t += 4) {
      *reinterpret_cast<uint2*>(p_row + 2 * t) = make_uint2(pack(s[t], s[t + 1], T()), pack(s[t + 2], s[t + 3], T()));
    }
    return factor != 1.0f;
  }

  __device__ void values(int first, int second, bool rescale) {
    if (warp() * C.slab() >= Extent<C>{p_}.latent()) return;
#pragma unroll
    for (int r = 0; r < C.row_tiles() && rescale; ++r) {
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
    for (int k = 0; k < kStepKeys / 16; ++k) {
      uint32_t p_frag[C.row_tiles()][4];
#pragma unroll
      for (int r = 0; r < C.row_tiles(); ++r) {
        ptx::ldmatrix_x4(p_frag[r],
                         base_ + C.p_offset() + tile::swizzled(16 * r + p_at.row, 2 * k + p_at.chunk, C.p_pitch()));
      }
#pragma unroll
      for (int n = 0; n < kSlabTiles; n += 2) {
        uint32_t v_frag[4];
        ptx::ldmatrix_x4_trans(v_frag, base_ + stage_offset(16 * k < kStageRows ? first : second) +
                                           tile::swizzled(16 * k % kStageRows + v_at.row,
                                                          warp() * C.slab() / 8 + n + v_at.chunk, kTilePitch));
#pragma unroll
        for (int r = 0; r < C.row_tiles(); ++r) {
          ptx::mma_m16n8k16(o_[r][n], p_frag[r], v_frag[0], v_frag[1], T());
          ptx::mma_m16n8k16(o_[r][n + 1], p_frag[r], v_frag[2], v_frag[3], T());
        }
      }
    }
  }

  // Rows as they are, with their maxima and sums, for the combine kernel.
  __device__ void write_partial(const Segment& segment, int64_t slot) {
    const int rows = tile_rows<C.rows>(p_, segment);
    const int latent = Extent<C>{p_}.latent();
    if (softmax_key() == 0 && softmax_row() < rows) p_.partial_ml[slot * C.rows + softmax_row()] = make_float2(m_, l_);
    if (warp() * C.slab() >= latent) return;
    // Neighbouring lanes swap halves, so that each holds four columns of one row: 16-byte stores.
    const bool upper = lane() % 2 != 0;
    float* out = p_.partial_out + slot * C.rows * latent + warp() * C.slab() + lane() % 4 / 2 * 4;
#pragma unroll
    for (int r = 0; r < C.row_tiles(); ++r) {
      const int row = 16 * r + tile::c_fragment_row(lane()) + (upper ? 8 : 0);
#pragma unroll
      for (int n = 0; n < kSlabTiles; ++n) {
        float(&o)[4] = o_[r][n];
        const float other0 = __shfl_xor_sync(~0u, upper ? o[0] : o[2], 1);
        const float other1 = __shfl_xor_sync(~0u, upper ? o[1] : o[3], 1);
        const float4 v = upper ? make_float4(other0, other1, o[2], o[3]) : make_float4(o[0], o[1], other0, other1);
        const int column = warp() * C.slab() + 8 * n;
        if (row < rows && (C.widths == Widths::kTuned || column < latent))
          *reinterpret_cast<float4*>(out + static_cast<int64_t>(row) * latent + 8 * n) = v;
      }
    }
  }

  __device__ void write_result(const Segment& segment, int stage) {
    const int rows = tile_rows<C.rows>(p_, segment);
    const int latent = Extent<C>{p_}.latent();
    const bool empty = l_ == 0.0f;
    if (softmax_key() == 0) {
      factor_smem()[C.rows + softmax_row()] = empty ? 0.0f : 1.0f / l_;
      if (p_.lse != nullptr && softmax_row() < rows) {
        const RowPlace place = row_place<C.rows>(p_, segment, softmax_row());
        p_.lse[offset_of(p_.lse_stride, segment, place)] = empty ? p_.empty_lse : lse_of(m_, l_);
      }
    }
    __syncthreads();
    stage_result(stage);
    __syncthreads();
    T* out = static_cast<T*>(p_.out);
    for (int row = warp(); row < rows; row += C.warps()) {
      T* out_row = out + offset_of(p_.out_stride, segment, row_place<C.rows>(p_, segment, row));
      for (int column = lane() * 8; column < latent; column += 32 * 8) {
        const unsigned char* from = smem_ + stage_offset(stage) + tile::swizzled(row, column / 8, kTilePitch);
        if (p_.out_aligned) {
          *reinterpret_cast<uint4*>(out_row + column) = *reinterpret_cast<const uint4*>(from);
          continue;
        }
        for (int i = 0; i < 8; ++i) out_row[column + i] = reinterpret_cast<const T*>(from)[i];
      }
    }
  }

  // O / l, rounded, in the ring.
  __device__ void stage_result(int stage) {
#pragma unroll
    for (int r = 0; r < C.row_tiles(); ++r) {
      const int row = 16 * r + tile::c_fragment_row(lane());
      const float low = factor_smem()[C.rows + row];
      const float high = factor_smem()[C.rows + row + 8];
#pragma unroll
      for (int n = 0; n < kSlabTiles; ++n) {
        const int chunk = warp() * C.slab() / 8 + n;
        const float(&o)[4] = o_[r][n];
        unsigned char* at = smem_ + stage_offset(stage) + tile::c_fragment_column(lane()) * 2;
        *reinterpret_cast<uint32_t*>(at + tile::swizzled(row, chunk, kTilePitch)) = pack(o[0] * low, o[1] * low, T());
        *reinterpret_cast<uint32_t*>(at + tile::swizzled(row + 8, chunk, kTilePitch)) =
            pack(o[2] * high, o[3] * high, T());
      }
    }
  }

  const DecodeKernelParams& p_;
  unsigned char* smem_;
  uint32_t base_;
  uint32_t limit_ = 0;   // keys before it are visible to this thread's softmax row
  float m_ = -INFINITY;  // running maximum of that row, scaled, in log2 units
  float l_ = 0;          // sum over this lane's tokens, relative to m_
  uint32_t q_frag_[C.row_tiles()][C.k_steps()][4];
  float o_[C.row_tiles()][kSlabTiles][4] = {};
};

}  // namespace flashmla::cuda::portable
