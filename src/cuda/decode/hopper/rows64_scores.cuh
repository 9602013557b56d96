// The scores role of the 64-row kernel (rows64.cuh): one warpgroup computes S = Q K^T and P.
#pragma once

#include "cuda/decode/hopper/rows64_shared.cuh"

namespace flashmla::cuda::rows64 {

// A thread has two query rows, own_row() and own_row() + 8, and 16 columns of each.
template <typename T>
class Scores {
 public:
  __device__ Scores(const DecodeKernelParams& params, const Shared& shared) : p_(params), shared_(shared) {}

  // ---- queries: both parts pass through the same shared memory, the one for the registers first

  __device__ void request_register_queries(const Segment& segment) { request_queries<true>(segment); }

  __device__ void take_register_queries() {
    ptx::cp_async_wait<0>();
    ptx::named_barrier_sync(kScoresBarrier, kRoleThreads);
    const uint32_t first = fragment_place();
#pragma unroll
    for (int i = 0; i < 4 * kRegisterPanels; ++i)
      ptx::ldmatrix_x4(q_[i], shared_.queries() + i / 4 * kPanelBytes + (first ^ i % 4 * 32));
    ptx::named_barrier_sync(kScoresBarrier, kRoleThreads);
  }

  __device__ void request_shared_queries(const Segment& segment) { request_queries<false>(segment); }

  // ---- one segment

  __device__ void begin(const Segment& segment) {
    const auto keys = static_cast<int32_t>(segment.key_end() - segment.key_begin());
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      m_[h] = -INFINITY;
      l_[h] = 0;
      seen_[h] = keys;
      if (p_.causal) {
        const int32_t token = portable::row_place<kRows>(p_, segment, own_row() + 8 * h).token;
        const int32_t limit = max(segment.size.keys - segment.size.tokens + token + 1, 0);
        seen_[h] = max(min(keys, limit - static_cast<int32_t>(segment.key_begin())), 0);
      }
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
#pragma unroll
      for (int i = 0; i < 8; ++i) s_[part][i] = -INFINITY;
    }
  }

  // Scores of block `block + 1`; between its products the softmax of `block`, whose scores are there. -1 is a block
  // without keys: the loop begins one block early, because a second code site of these products would cost registers.
  __device__ void step(int block) {
    const Shared shared = shared_.uniform();
    const uint32_t right = unit_ + 1 == kUnits ? 0 : unit_ + 1;
    const uint32_t right_parity = unit_ + 1 == kUnits ? parity_ ^ 1 : parity_;
    ptx::mbarrier_wait(shared.unit_full(unit_), parity_);
    ptx::wgmma_tie(next_);  // the first product overwrites them
    // The right half's product still has the tensor cores: a product that is asked for now would hold this warp.
    update_maximum(block * kBlockKeys);
    ptx::wgmma_fence();
    multiply<0>(shared.queries(), shared.unit(unit_));
    exponentiate<0>();
    ptx::wgmma_fence();
    multiply<1>(shared.queries(), shared.unit(unit_));
    exponentiate<1>();
    multiply<2>(shared.queries(), shared.unit(unit_));
    if (block >= 0) begin_publishing();
    exponentiate<2>();
    if (block >= 0) publish_part<2>();
    ptx::wgmma_fence();
    multiply<3>(shared.queries(), shared.unit(unit_));
    exponentiate<3>();
    if (block >= 0)
      end_publishing();
    else
      take_shared_queries();
    ptx::mbarrier_wait(shared.rope_full(block_ % kRopeSlots), block_ / kRopeSlots % 2);
    ptx::wgmma_fence();
    multiply<kRopePanel>(shared.queries(), shared.rope(block_ % kRopeSlots));
    ptx::mbarrier_wait(shared.unit_full(right), right_parity);
    ptx::wgmma_fence();
    multiply<4>(shared.queries(), shared.unit(right));
    multiply<5>(shared.queries(), shared.unit(right));
    multiply<6>(shared.queries(), shared.unit(right));
    multiply<7>(shared.queries(), shared.unit(right));
    ptx::wgmma_commit();
    if (block >= 0) ptx::named_barrier_arrive(kScoresAskedBarrier, 2 * kRoleThreads);
    ptx::wgmma_wait<0>();
    ptx::wgmma_tie(next_);
#pragma unroll
    for (int i = 0; i < 32; ++i) s_[i / 8][i % 8] = next_[i] * p_.scale_log2;
    unit_ += 2;
    if (unit_ >= kUnits) {
      unit_ -= kUnits;
      parity_ ^= 1;
    }
    ++block_;
  }

  // The softmax of the segment's last block.
  __device__ void drain(int block) {
    update_maximum(block * kBlockKeys);
    exponentiate<0>();
    exponentiate<1>();
    exponentiate<2>();
    exponentiate<3>();
    begin_publishing();
    publish_part<2>();
    end_publishing();
  }

  // Adds up the rows' sums and hands the inverse ones to the other roles.
  __device__ void hand_inverses(uint32_t number) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      l_[h] += __shfl_xor_sync(~0u, l_[h], 1);
      l_[h] += __shfl_xor_sync(~0u, l_[h], 2);
      if (lane() % 4 == 0) shared_.inverses(number)[own_row() + 8 * h] = l_[h] == 0.0f ? 0.0f : 1.0f / l_[h];
    }
    __syncwarp();
    ptx::named_barrier_arrive(kSegmentDoneBarrier, 3 * kRoleThreads);
  }

  __device__ void write_statistics(const Visit& visit) const {
    const Segment& segment = visit.segment;
    const int rows = portable::tile_rows<kRows>(p_, segment);
    const bool whole = __any_sync(~0u, segment.whole());
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int own = own_row() + 8 * h;
      if (lane() % 4 != 0 || own >= rows) continue;
      if (!whole) {
        p_.partial_ml[visit.partial_row + own] = make_float2(m_[h], l_[h]);
      } else if (p_.lse != nullptr) {
        const portable::RowPlace place = portable::row_place<kRows>(p_, segment, own);
        p_.lse[portable::offset_of(p_.lse_stride, segment, place)] =
            l_[h] == 0.0f ? p_.empty_lse : portable::lse_of(m_[h], l_[h]);
      }
    }
    __syncwarp();
  }

 private:
  static constexpr float kStale = 8;  // P stays below 2^8: harmless in 16 bits, and rescaling becomes rare

  // Where ldmatrix and stmatrix find the first 16 columns of the warp's rows in a panel; the others follow 32 bytes
  // apart, before the swizzle.
  __device__ static uint32_t fragment_place() {
    const tile::RowChunk at = tile::a_fragment_lane(lane());
    return tile::swizzled(16 * role_warp() + at.row, at.chunk, kRowBytes);
  }

  // Each thread copies 16 bytes of every panel, in every sixteenth row.
  template <bool kForRegisters>
  __device__ void request_queries(const Segment& segment) const {
    constexpr int kPassRows = kRoleThreads / 8;
    constexpr int kCount = kForRegisters ? kRegisterPanels : kQueryPanels;
    const int chunk = threadIdx.x % 8;
    const int rows = portable::tile_rows<kRows>(p_, segment);
    const bool even = rows_are_even(p_);
    const char* latent = nullptr;
    const char* rope = nullptr;
#pragma unroll 1
    for (int pass = 0; pass < kRows / kPassRows; ++pass) {
      const int row = static_cast<int>(threadIdx.x / 8) + pass * kPassRows;
      if (pass == 0 || !even) {
        const portable::RowPlace place = portable::row_place<kRows>(p_, segment, min(row, rows - 1));
        latent = static_cast<const char*>(p_.q) + portable::offset_of(p_.q_stride, segment, place) * kElementBytes;
        if (!kForRegisters)
          rope = static_cast<const char*>(p_.q_rope) +
                 portable::offset_of(p_.q_rope_stride, segment, place) * kElementBytes;
      } else {
        latent += kPassRows * p_.q_stride.head * kElementBytes;
        if (!kForRegisters) rope += kPassRows * p_.q_rope_stride.head * kElementBytes;
      }
      const uint32_t to = shared_.queries() + tile::swizzled(row, chunk, kRowBytes);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int panel = kForRegisters ? i : kRegisterPanels + i;
        const char* from = panel == kRopePanel ? rope : latent + panel * kRowBytes;
        ptx::cp_async_16(to + i * kPanelBytes, from + chunk * 16, row < rows);
      }
    }
    ptx::cp_async_commit();
  }

  __device__ void take_shared_queries() const {
    ptx::cp_async_wait<0>();
    ptx::async_proxy_fence();
    ptx::named_barrier_sync(kScoresBarrier, kRoleThreads);
  }

  // Adds Q K^T of one panel.
  template <int kPanel>
  __device__ void multiply(uint32_t queries, uint32_t keys_unit) {
    const uint32_t in_unit = kPanel == kRopePanel ? 0 : kPanel % kUnitPanels;
    const uint64_t keys = ptx::wgmma_descriptor(keys_unit + in_unit * kPanelBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t k = keys + ptx::wgmma_offset(step * 32);
      const bool add = kPanel > 0 || step > 0;
      if constexpr (kPanel < kRegisterPanels) {
        ptx::wgmma_rs<ptx::kKMajor>(next_, q_[4 * kPanel + step], k, add, T());
      } else {
        constexpr int kPlace = kPanel - kRegisterPanels;
        const uint64_t q = ptx::wgmma_descriptor(queries + kPlace * kPanelBytes);
        ptx::wgmma_ss<ptx::kKMajor, ptx::kKMajor>(next_, q + ptx::wgmma_offset(step * 32), k, add, T());
      }
    }
  }

  // ---- softmax of s_: 8 values of two rows are a part. Element 4 j + 2 h + c of a part is row own_row() + 8 h, column
  // 16 part + 8 j + 2 (lane % 4) + c.

  __device__ void update_maximum(int32_t key) {
    const uint32_t absent = shared_.absent((block_ + 1) % kRopeSlots);
    if (__any_sync(~0u, min(seen_[0], seen_[1]) - key < kBlockKeys || absent != 0)) mask(key, absent);
    // Each thread looks at its own columns; only where a row has outgrown its maximum do the others of the row matter.
    float largest[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      largest[h] = fmaxf(fmaxf(part_maximum(0, h), part_maximum(1, h)), fmaxf(part_maximum(2, h), part_maximum(3, h)));
    factor_[0] = 1;
    factor_[1] = 1;
    if (__any_sync(~0u, largest[0] > m_[0] + kStale || largest[1] > m_[1] + kStale)) raise_maximum(largest);
  }

  __device__ float part_maximum(int part, int h) const {
    const float(&s)[8] = s_[part];
    return fmaxf(fmaxf(s[2 * h], s[2 * h + 1]), fmaxf(s[2 * h + 4], s[2 * h + 5]));
  }

  __device__ void raise_maximum(float (&largest)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], 1));
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], 2));
      const float m = fmaxf(m_[h], largest[h]);
      const float factor = ptx::exp2_approx(m_[h] - m);
      factor_[h] = m_[h] == -INFINITY ? 1.0f : factor;  // nothing has been summed up before the first maximum
      m_[h] = m;
      l_[h] *= factor_[h];
    }
  }

  // A thread's pair of columns never lies in two boxes, which are eight columns and more.
  __device__ void mask(int32_t key, uint32_t absent) {
    int32_t limit[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) limit[h] = seen_[h] - key - tile::c_fragment_column(lane());
#pragma unroll
    for (int part = 0; part < 4; ++part) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int group = 16 * part + i / 4 * 8;
        const bool hidden = (group + i % 2 >= limit[i / 2 % 2]) | ((absent >> (group >> p_.log2_box) & 1) != 0);
        s_[part][i] = hidden ? -INFINITY : s_[part][i];
      }
    }
  }

  // What exponents are relative to; a row that has seen no key yet has no maximum.
  __device__ float reference(int h) const { return m_[h] == -INFINITY ? 0.0f : m_[h]; }

  template <int kPart>
  __device__ void exponentiate() {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int h = i / 2 % 2;
      s_[kPart][i] = ptx::exp2_approx(s_[kPart][i] - reference(h));
      l_[h] += s_[kPart][i];
    }
    ptx::wgmma_tie(s_[kPart]);  // the compiler leaves it here, between the products
  }

  // P of the block before this one has been used up: its place, and that of the factors, is free.
  __device__ void begin_publishing() {
    ptx::named_barrier_sync(kPFreeBarrier, 3 * kRoleThreads);
    if (lane() % 4 == 0) {
      shared_.factors()[own_row()] = factor_[0];
      shared_.factors()[own_row() + 8] = factor_[1];
    }
    publish_part<0>();
    publish_part<1>();
  }

  template <int kPart>
  __device__ void publish_part() {
    const float(&s)[8] = s_[kPart];
    ptx::stmatrix_x4(shared_.p() + (fragment_place() ^ kPart * 32), portable::pack(s[0], s[1], T()),
                     portable::pack(s[2], s[3], T()), portable::pack(s[4], s[5], T()), portable::pack(s[6], s[7], T()));
  }

  __device__ void end_publishing() {
    publish_part<3>();
    ptx::async_proxy_fence();
    __syncwarp();
    ptx::named_barrier_arrive(kLeftPBarrier, 2 * kRoleThreads);
    ptx::named_barrier_arrive(kRightPBarrier, 2 * kRoleThreads);
  }

  const DecodeKernelParams& p_;
  const Shared shared_;
  // Of the block whose scores come next: its number in the slice, its left unit and the parity of the phase that fills
  // it.
  uint32_t block_ = 0;
  uint32_t unit_ = 0;
  uint32_t parity_ = 0;

  int32_t seen_[2];  // keys of the segment that each row sees
  float m_[2];       // maxima, scaled, in log2 units; may lag behind by kStale
  float l_[2];       // sums over this thread's columns, relative to m_
  float factor_[2];  // of what was summed up before s_
  float s_[4][8];
  float next_[32] = {};  // the first product overwrites it
  uint32_t q_[4 * kRegisterPanels][4];
};

template <typename T>
__device__ __forceinline__ void scores_role(const DecodeKernelParams& p, const Shared& shared) {
  Scores<T> scores(p, shared);
  scores.request_register_queries(shared.wait_for_segment(0));
  scores.take_register_queries();
  scores.request_shared_queries(shared.segment(0));
  for (uint32_t number = 0;; ++number) {
    const Segment& segment = shared.segment(number);
    scores.begin(segment);
    const int blocks = block_count(segment);
    const bool last = __any_sync(~0u, segment.last);
#pragma unroll 1
    for (int block = -1; block < blocks - 1; ++block) scores.step(block);
    ptx::named_barrier_sync(kScoresBarrier, kRoleThreads);  // no product reads the queries any more
    if (!last) scores.request_register_queries(shared.wait_for_segment(number + 1));
    scores.drain(blocks - 1);
    scores.hand_inverses(number);
    if (!last) {
      scores.take_register_queries();
      scores.request_shared_queries(shared.segment(number + 1));
    }
    scores.write_statistics(shared.visit(number));
    if (last) return;
  }
}

}  // namespace flashmla::cuda::rows64
