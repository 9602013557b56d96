// The portable decode kernel: mma.sync and cp.async, correct on every GPU since sm_80.
//
// Budget (H200, 16 rows, clocks per step of 64 keys): KV bytes 73,728 at 1/132 of 4.65 TB/s = 3,900; shared-memory
// traffic K 72 KB + V 64 KB + scores and P 20 KB = 1,250; tensor work 68 mma.m16n8k16 a warp, 1,100; the chain from
// scores over softmax to values about 2,500. So the loop waits for memory once the ring is deep enough; at low batch the
// way to the first bytes and out of the last ones counts, where every instruction is fetched for the first time: one
// code site for each thing, no unrolled prologue. docs/kernels/decode.md.
//
// A block of 8 warps walks the segments of its slice (line.cuh). A segment is one tile of query rows against a run of
// keys. Everything comes through one ring in shared memory: for each segment its tile of Q in one stage, then its keys
// in pairs of stages. Per pair:
//   scores   each warp: 16 (32) keys x a half (quarter) of k, for all 16 (32) rows; partial sums to shared memory
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

__device__ __forceinline__ uint32_t pack(float low, float high, __nv_bfloat16 /*element*/) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t pack(float low, float high, __half /*element*/) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Natural logarithm of the sum of exp(scores), from a maximum in log2 units and a sum relative to it.
__device__ __forceinline__ float lse_of(float m, float l) { return (m + log2f(l)) * 0.6931471805599453f; }

// d_qk as the loops see it: constants where the kernel is tuned for them.
template <DecodeConfig C>
struct Extent {
  const DecodeKernelParams& p;
  __device__ int latent() const { return C.widths == Widths::kTuned ? kMaxLatent : p.latent_dim; }
  __device__ int width() const { return C.widths == Widths::kTuned ? kMaxWidth : p.latent_dim + p.rope_dim; }
  __device__ int k_steps() const { return (width() + 15) / 16; }
  __device__ int panels() const { return (width() + 63) / 64; }
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

// Segments between the loader, which finds them, and the computation: at most one for each stage, and the current one.
constexpr int kSegments = kMaxStages + 1;
static_assert(kSegments * sizeof(Segment) <= DecodeConfig::static_bytes());

// Fills the ring, ahead of the computation and over the ends of segments.
//
// Eight lanes copy a panel of a row, 128 bytes, side by side; 32 such groups, a row of a stage each.
//
// Loads come back in order, so a page id asked for behind a ring full of keys would be waited for as long as these. Ids
// therefore travel with the stage that is `stages` before theirs, into a slot of the same number, and are there when
// that stage has been used and its place is filled again. Only a segment's first ids are read directly.
template <DecodeConfig C>
class Loader {
 public:
  __device__ Loader(const DecodeKernelParams& params, const Cursor<C.rows>& cursor, unsigned char* smem,
                    Segment* segments)
      : p_(params),
        cursor_(cursor),
        segments_(segments),
        smem_(smem),
        ring_(ptx::shared_address(smem) + C.ring_offset() + tile::swizzled(row(), lane(), kTilePitch)) {}

  // Issues the next stage of the ring as one group of copies; an empty group once the slice is through.
  __device__ void issue(int stage) {
    const uint32_t target = ring_ + stage * kStageBytes;
    if (key_stages_ > 0) {
      issue_keys(target, stage);
      key_ += kStageRows;
      if (--key_stages_ == 0) cursor_.next();
    } else if (!cursor_.done()) {
      begin_segment(target, stage);
    }
    ptx::cp_async_commit();
  }

 private:
  static_assert(C.threads() == 8 * kStageRows);
  static constexpr int kPanels = kMaxWidth / 64;
  __device__ static int row() { return threadIdx.x / 8; }
  __device__ static int lane() { return threadIdx.x % 8; }

  __device__ int32_t* id_slot(int stage) const {
    return reinterpret_cast<int32_t*>(smem_ + C.id_offset()) + stage * kStageRows + row();
  }

  __device__ void begin_segment(uint32_t target, int stage) {
    const Segment& segment = cursor_.segment();
    if (threadIdx.x == 0) segments_[next_segment_] = segment;
    next_segment_ = (next_segment_ + 1) % kSegments;
    key_ = segment.key_begin() + row();
    key_end_ = segment.key_end();
    table_ = p_.page_table + segment.request * p_.table_stride;
    head_ = static_cast<const char*>(p_.kv) + (segment.kv_head * p_.kv_head_stride + lane() * 8) * kElementBytes;
    int32_t ids[kMaxStages] = {};
    if (key_end_ > segment.key_begin()) {
      // No branch around a load: they are in flight together. Past the last key its id is read again and not used.
#pragma unroll
      for (int i = 0; i < kMaxStages; ++i)
        ids[i] = ptx::load_l2(table_ + p_.page_size.quotient(min(key_ + i * kStageRows, key_end_ - 1)));
    }
    issue_queries(target);
#pragma unroll
    for (int i = 0; i < kMaxStages; ++i) {
      if (++stage == p_.stages) stage = 0;
      if (i < p_.stages && lane() == 0) *id_slot(stage) = ids[i];
    }
    __syncwarp();
    key_stages_ = (key_end_ - segment.key_begin() + kStepKeys - 1) / kStepKeys * (kStepKeys / kStageRows);
    if (key_end_ <= segment.key_begin()) {
      key_stages_ = 0;
      cursor_.next();
    }
  }

  __device__ void issue_keys(uint32_t target, int stage) {
    const int32_t id = *id_slot(stage);
    const bool valid = key_ < key_end_ && static_cast<uint32_t>(id) < static_cast<uint32_t>(p_.pages);
    // Where there is no key, zeros are written and nothing is read, whatever the address.
    const int32_t page = valid ? id : 0;
    const auto place = static_cast<int32_t>(key_ - p_.page_size.quotient(key_) * p_.page_size.divisor);
    const char* source = head_ + (page * p_.kv_page_stride + place * p_.kv_token_stride) * kElementBytes;
    const uint64_t policy = ptx::evict_first_policy();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      bool inside = valid;
      if (C.widths == Widths::kAny) {
        if (panel >= Extent<C>{p_}.panels()) break;
        inside = valid && panel * 64 + lane() * 8 < Extent<C>{p_}.width();
      }
      ptx::cp_async_16(target + panel * tile::kPanelBytes, source + panel * tile::kPanelBytes, inside, policy);
    }
    __syncwarp();  // the row's lanes have read its id
    if (lane() == 0) {
      smem_[C.valid_offset() + stage * kStageRows + row()] = valid;
      const uint32_t key = key_ + p_.stages * kStageRows;
      if (key < key_end_) ptx::cp_async_4(ptx::shared_address(id_slot(stage)), table_ + p_.page_size.quotient(key));
    }
  }

  // The tile of queries; rows that do not exist become zeros.
  __device__ void issue_queries(uint32_t target) {
    if (row() >= C.rows) return;
    const Extent<C> extent{p_};
    const Segment& segment = cursor_.segment();
    const bool valid = row() < tile_rows<C.rows>(p_, segment);
    const RowPlace place = row_place<C.rows>(p_, segment, row());
    const char* q = static_cast<const char*>(p_.q);
    const char* rope = static_cast<const char*>(p_.q_rope);
    if (valid) {
      q += (offset_of(p_.q_stride, segment, place) + lane() * 8) * kElementBytes;
      rope += (offset_of(p_.q_rope_stride, segment, place) + lane() * 8 - extent.latent()) * kElementBytes;
    }
#pragma unroll 1
    for (int panel = 0; panel < extent.panels(); ++panel) {
      const int column = panel * 64 + lane() * 8;
      const bool inside = valid && (C.widths == Widths::kTuned || column < extent.width());
      const char* source = column < extent.latent() ? q : rope;
      ptx::cp_async_16(target + panel * tile::kPanelBytes, source + panel * tile::kPanelBytes, inside);
    }
  }

  const DecodeKernelParams& p_;
  Cursor<C.rows> cursor_;
  Segment* const segments_;
  int next_segment_ = 0;
  unsigned char* const smem_;
  const uint32_t ring_;         // this thread's first chunk of stage 0
  uint32_t key_stages_ = 0;         // of the segment, still to be issued; 0: its queries come next
  const int32_t* table_ = nullptr;  // the request's row
  const char* head_ = nullptr;      // the KV head's first chunk of this lane
  uint32_t key_end_ = 0;
  uint32_t key_ = 0;  // this thread's key in the stage that is issued next
};

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
      write_partial(segment, partial_slot<C.rows>(p_, segment, slice));
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
  // Address of a 16 x 16 block of a [row][k] tile at this warp's first k step, for this lane. Four k steps are a 128-byte
  // panel, so with four k splits the others follow a panel apart.
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
      *reinterpret_cast<uint2*>(p_row + 2 * t) =
          make_uint2(pack(s[t], s[t + 1], T()), pack(s[t + 2], s[t + 3], T()));
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
        ptx::ldmatrix_x4(p_frag[r], base_ + C.p_offset() +
                                        tile::swizzled(16 * r + p_at.row, 2 * k + p_at.chunk, C.p_pitch()));
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
        *reinterpret_cast<uint32_t*>(at + tile::swizzled(row, chunk, kTilePitch)) =
            pack(o[0] * low, o[1] * low, T());
        *reinterpret_cast<uint32_t*>(at + tile::swizzled(row + 8, chunk, kTilePitch)) =
            pack(o[2] * high, o[3] * high, T());
      }
    }
  }

  const DecodeKernelParams& p_;
  unsigned char* smem_;
  uint32_t base_;
  uint32_t limit_ = 0;    // keys before it are visible to this thread's softmax row
  float m_ = -INFINITY;  // running maximum of that row, scaled, in log2 units
  float l_ = 0;          // sum over this lane's tokens, relative to m_
  uint32_t q_frag_[C.row_tiles()][C.k_steps()][4];
  float o_[C.row_tiles()][kSlabTiles][4] = {};
};

// Waits until at most `pending` of this thread's newest groups are in flight.
__device__ __forceinline__ void wait_for_stages(int pending) {
  static_assert(kMaxStages == 5);
  if (pending == 3) return ptx::cp_async_wait<3>();
  if (pending == 4) return ptx::cp_async_wait<4>();
  if (pending == 2) return ptx::cp_async_wait<2>();
  if (pending == 1) return ptx::cp_async_wait<1>();
  ptx::cp_async_wait<0>();
}

}  // namespace portable

// Fetches all cache lines of the kernel's parameters at once. They would come one by one, each when it is first used.
__device__ __forceinline__ void warm_parameters(const DecodeKernelParams& p) {
  constexpr int kLineBytes = 64;
  constexpr int kLines = (sizeof(DecodeKernelParams) + kLineBytes - 1) / kLineBytes;
  const int line = threadIdx.x % kLines;
  const int word = reinterpret_cast<const int*>(&p)[line * kLineBytes / sizeof(int)];
  asm volatile("" ::"r"(word));
}

// The fields of a DecodeConfig one by one: nvcc 13.0 cannot write host stubs of kernels with class-type parameters.
template <typename T, int kRows, Widths kWidths>
__global__ void __launch_bounds__(DecodeConfig{kRows, kWidths}.threads(), 1)
    decode_portable(const __grid_constant__ DecodeKernelParams p) {
  constexpr DecodeConfig C{kRows, kWidths};
  extern __shared__ __align__(128) unsigned char smem[];
  __shared__ Segment segments[portable::kSegments];
 warm_parameters(p);
  ptx::grid_dependency_wait();
  Line<C.rows> line(p);
  const LineTotals totals = line.read();
  const uint32_t slices = slice_count(totals, p.blocks, p.few_units, p.least_units);
  const uint32_t slice = slice_of_block(blockIdx.x, gridDim.x, slices);
  if (slice >= slices) {
    ptx::grid_dependency_launch();
    return;
  }
  const Slices cut(totals.units, slices);
  const uint32_t begin = cut.begin(slice);
  const Cursor<C.rows> cursor(p, line.rule(), line.find(begin), begin, cut.begin(slice + 1));
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
