// One tile of few query rows: scores, softmax, values, and what becomes of them (few_rows.cuh).
#pragma once

#include "cuda/decode/hopper/loaders.cuh"

namespace flashmla::cuda::hopper {

// What the four compute warps hold of a tile. In S^T and in every panel of O^T a thread has the same query rows: of
// each eight, number i, rows 8 i + pair and the next (pair = 2 (lane % 4)). In S^T its keys are key and key + 8, in O^T
// its columns of each panel are the same two numbers.
template <typename T, int kRows>
class FewRowsTile {
 public:
  using Layout = FewRowsLayout<kRows>;

  __device__ FewRowsTile(const DecodeKernelParams& params, const Ring<Layout>& ring) : p_(params), ring_(ring) {}

  // Waits for visit `number` of the slice, and its queries.
  __device__ const Visit& begin(uint32_t number) {
#pragma unroll
    for (int c = 0; c < kOwnRows; ++c) {
      m_[c] = -INFINITY;
      l_[c] = 0;
    }
    first_ = true;
    ptx::mbarrier_wait(ring_.queries_full(), number & 1);
    const Visit& visit = ring_.visit(number);
    const Segment& segment = visit.segment;
    limit_ = limit_of(segment, 0);  // the first row's token sees the fewest keys
    if (segment.key_begin() == segment.key_end()) {
#pragma unroll
      for (int panel = 0; panel < kValuePanels; ++panel) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) o_[panel][i] = 0;
      }
      if (lane() == 0) ptx::mbarrier_arrive(ring_.queries_empty());
    }
    return visit;
  }

  // Keys key .. key + 63 of the segment, up to `end`.
  __device__ void step(const Visit& visit, uint32_t key, uint32_t end) {
    const Segment& segment = visit.segment;
    const RingPlace begin = place_;
    const bool last = key + kTileKeys >= end;
    float s[kSums];
    scores(s);
    // Rows past the last key may hold anything, and 0 x NaN is NaN. The scores may read them meanwhile.
    if (key + kTileKeys > end) clear_values(begin, end - key);
    ptx::wgmma_wait<0>();
    ptx::wgmma_tie(s);
    if (last && lane() == 0) ptx::mbarrier_arrive(ring_.queries_empty());
    const uint32_t absent = ring_.absent(tile_++);
#pragma unroll
    for (int i = 0; i < kSums; ++i) s[i] *= p_.scale_log2;
    if (__builtin_expect(key + kTileKeys > limit_ || absent != 0, 0)) mask(s, segment, key, absent);
    softmax(s);
    values(begin, last);
    first_ = false;
  }

  // Writes what the segment came to.
  __device__ void finish(const Visit& visit) const {
    const Segment& segment = visit.segment;
    const int rows = portable::tile_rows<kRows>(p_, segment);
    if (threadIdx.x < 4) write_statistics(visit, rows);
    __syncwarp();
    if (segment.whole()) return write_result(segment, rows);
    // In the order in which the threads hold it (combine_fragments.cuh). Written while later panels' products run, it
    // took as long.
    auto* out = reinterpret_cast<float4*>(p_.partial_out + visit.partial_row * kMaxLatent) + threadIdx.x;
#pragma unroll
    for (int panel = 0; panel < kValuePanels; ++panel) {
#pragma unroll
      for (int i = 0; i < kRowGroups; ++i) {
        const float* o = &o_[panel][4 * i];
        out[(panel * kRowGroups + i) * kComputeThreads] = make_float4(o[0], o[1], o[2], o[3]);
      }
    }
  }

 private:
  static constexpr int kRowGroups = kRows / 8;
  static constexpr int kOwnRows = 2 * kRowGroups;    // of a thread
  static constexpr int kSums = kRows / 2;            // accumulators of a thread
  static constexpr int kStores = (kRows + 15) / 16;  // chunks of results a lane writes of each panel
  static constexpr float kStale = 8;  // P stays below 2^8: harmless in 16 bits, and rescaling becomes rare
  // Named barriers of the compute warps; 0 is __syncthreads.
  static constexpr int kMaximumBarrier = 1;
  static constexpr int kExchangeBarrier = 2;
  static constexpr int kPBarrier = 3;
  static constexpr int kComputeThreads = 32 * kComputeWarps;

  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int pair() { return lane() % 4 * 2; }
  __device__ static int own_key() { return 16 * warp() + lane() / 4; }
  __device__ static int own_row(int c) { return c / 2 * 8 + pair() + c % 2; }
  // Which number of a thread's rows accumulator i belongs to.
  __device__ static constexpr int row_of_sum(int i) { return i / 4 * 2 + i % 2; }

  __device__ float* maxima(int warp_number) const {
    return reinterpret_cast<float*>(ring_.smem + Layout::kMaxima) + warp_number * kRows;
  }
  __device__ float* sums(int warp_number) const {
    return reinterpret_cast<float*>(ring_.smem + Layout::kSums) + warp_number * kRows;
  }

  // Keys before it are visible to a row of the tile.
  __device__ uint32_t limit_of(const Segment& segment, int row) const {
    if (!p_.causal) return segment.key_end();
    const int32_t token = portable::row_place<kRows>(p_, segment, row).token;
    return min(static_cast<uint32_t>(max(segment.size.keys - segment.size.tokens + token + 1, 0)), segment.key_end());
  }

  // Issues S^T = K Q^T of the next tile and leaves it in flight.
  __device__ void scores(float (&s)[kSums]) {
    const uint64_t q = ptx::wgmma_descriptor(ring_.queries());
#pragma unroll
    for (int group = 0; group < kTileGroups; ++group, place_.next()) {
      ptx::mbarrier_wait(ring_.full(place_.slot), place_.round & 1);
      if (group == 0) ptx::wgmma_tie(s);
      ptx::wgmma_fence();
      const uint64_t k = ptx::wgmma_descriptor(ring_.group(place_.slot));
#pragma unroll
      for (int panel = 0; panel < kGroupPanels; ++panel) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          ptx::wgmma_ss<ptx::kKMajor, ptx::kKMajor>(
              s, k + ptx::wgmma_offset(panel * kPanelBytes + step * 32),
              q + ptx::wgmma_offset((group * kGroupPanels + panel) * Layout::kQueryPanelBytes + step * 32),
              group > 0 || panel > 0 || step > 0, T());
        }
      }
    }
    ptx::wgmma_commit();
  }

  __device__ void clear_values(RingPlace at, uint32_t valid) {
    for (uint32_t i = threadIdx.x; i < (kTileKeys - valid) * kValuePanels * 8; i += kComputeThreads) {
      const int panel = i / 8 % kValuePanels;
      const uint32_t row = valid + i / (8 * kValuePanels);
      int slot = at.slot + panel / kGroupPanels;
      if (slot >= kRingGroups) slot -= kRingGroups;
      *reinterpret_cast<uint4*>(ring_.smem + slot * kGroupBytes + panel % kGroupPanels * kPanelBytes + row * kRowBytes +
                                i % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
  }

  __device__ void mask(float (&s)[kSums], const Segment& segment, uint32_t key, uint32_t absent) const {
#pragma unroll
    for (int c = 0; c < kOwnRows; ++c) {
      const uint32_t limit = limit_of(segment, own_row(c));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t in_tile = own_key() + 8 * half;
        if (key + in_tile >= limit || (absent >> (in_tile >> p_.log2_box) & 1) != 0)
          s[c / 2 * 4 + 2 * half + c % 2] = -INFINITY;
      }
    }
  }

  // Scaled scores become P in shared memory; maxima and sums follow.
  __device__ void softmax(float (&s)[kSums]) {
    float largest[kOwnRows];
    bool outgrown = false;
#pragma unroll
    for (int c = 0; c < kOwnRows; ++c) {
      largest[c] = fmaxf(s[c / 2 * 4 + c % 2], s[c / 2 * 4 + 2 + c % 2]);
      outgrown |= largest[c] > m_[c] + kStale;
    }
    // All warps are past the values of the tile before this one: P may be overwritten.
    if (ptx::named_barrier_or(kMaximumBarrier, kComputeThreads, outgrown)) raise_maxima(largest);
    float reference[kOwnRows];
#pragma unroll
    for (int c = 0; c < kOwnRows; ++c) reference[c] = m_[c] == -INFINITY ? 0.0f : m_[c];  // no key seen yet
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      s[i] = ptx::exp2_approx(s[i] - reference[row_of_sum(i)]);
      l_[row_of_sum(i)] += s[i];
    }
    // Matrix j of a stmatrix: rows 8 (i + j / 2) of P, keys 16 warp + 8 (j % 2).
    const uint32_t p_at =
        ring_.base + Layout::kP + tile::swizzled(lane() / 16 * 8 + lane() % 8, 2 * warp() + lane() / 8 % 2, kRowBytes);
    uint32_t packed[2 * kRowGroups];
#pragma unroll
    for (int i = 0; i < 2 * kRowGroups; ++i) packed[i] = portable::pack(s[2 * i], s[2 * i + 1], T());
#pragma unroll
    for (int i = 0; i + 1 < kRowGroups; i += 2) {
      ptx::stmatrix_x4_trans(p_at + i * 8 * kRowBytes, packed[2 * i], packed[2 * i + 1], packed[2 * i + 2],
                             packed[2 * i + 3]);
    }
    if (kRowGroups % 2 == 1)
      ptx::stmatrix_x2_trans(p_at + (kRowGroups - 1) * 8 * kRowBytes, packed[2 * kRowGroups - 2],
                             packed[2 * kRowGroups - 1]);
    ptx::async_proxy_fence();
    ptx::named_barrier_sync(kPBarrier, kComputeThreads);
  }

  // New maxima over all keys of the tile and all before; what was summed up so far follows.
  __device__ void raise_maxima(float (&largest)[kOwnRows]) {
#pragma unroll
    for (int c = 0; c < kOwnRows; ++c) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) largest[c] = fmaxf(largest[c], __shfl_xor_sync(~0u, largest[c], step));
    }
    if (lane() < 4) {
#pragma unroll
      for (int i = 0; i < kRowGroups; ++i)
        *reinterpret_cast<float2*>(maxima(warp()) + 8 * i + pair()) = make_float2(largest[2 * i], largest[2 * i + 1]);
    }
    __syncwarp();  // the barrier wants whole warps
    ptx::named_barrier_sync(kExchangeBarrier, kComputeThreads);
#pragma unroll
    for (int i = 0; i < kRowGroups; ++i) {
      float m[2] = {m_[2 * i], m_[2 * i + 1]};
#pragma unroll
      for (int w = 0; w < kComputeWarps; ++w) {
        const float2 other = *reinterpret_cast<const float2*>(maxima(w) + 8 * i + pair());
        m[0] = fmaxf(m[0], other.x);
        m[1] = fmaxf(m[1], other.y);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float reference = m[c] == -INFINITY ? 0.0f : m[c];
        const float factor = ptx::exp2_approx(m_[2 * i + c] - reference);
        m_[2 * i + c] = m[c];
        l_[2 * i + c] *= factor;
        if (first_) continue;
#pragma unroll
        for (int panel = 0; panel < kValuePanels; ++panel) {
          o_[panel][4 * i + c] *= factor;
          o_[panel][4 * i + 2 + c] *= factor;
        }
      }
    }
  }

  // O^T += V^T P^T; gives the ring's groups back one by one.
  __device__ void values(RingPlace at, bool last) {
    const uint64_t p = ptx::wgmma_descriptor(ring_.base + Layout::kP);
#pragma unroll
    for (int panel = 0; panel < kValuePanels; ++panel) ptx::wgmma_tie(o_[panel]);
    ptx::wgmma_fence();
    RingPlace place = at;
#pragma unroll
    for (int group = 0; group < kTileGroups; ++group, place.next()) {
      const uint64_t v = ptx::wgmma_descriptor(ring_.group(place.slot));
#pragma unroll
      for (int i = 0; i < kGroupPanels; ++i) {
        const int panel = group * kGroupPanels + i;
        if (panel >= kValuePanels) break;
#pragma unroll
        for (int step = 0; step < kTileKeys / 16; ++step) {
          ptx::wgmma_ss<ptx::kMnMajor, ptx::kKMajor>(o_[panel],
                                                     v + ptx::wgmma_offset(i * kPanelBytes + step * 16 * kRowBytes),
                                                     p + ptx::wgmma_offset(step * 32), !first_ || step > 0, T());
        }
      }
      ptx::wgmma_commit();
    }
    if (last) add_up_sums();  // hidden behind the products
    place = at;
    give_back<2>(place);
    give_back<1>(place);
    give_back<0>(place);
  }

  template <int kPending>
  __device__ void give_back(RingPlace& place) {
    ptx::wgmma_wait<kPending>();
    constexpr int kFirst = (kTileGroups - 1 - kPending) * kGroupPanels;
#pragma unroll
    for (int panel = kFirst; panel < kFirst + kGroupPanels && panel < kValuePanels; ++panel) ptx::wgmma_tie(o_[panel]);
    if (lane() == 0) ptx::mbarrier_arrive(ring_.empty(place.slot));
    place.next();
  }

  // Row sums over all threads of a row.
  __device__ void add_up_sums() {
#pragma unroll
    for (int c = 0; c < kOwnRows; ++c) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) l_[c] += __shfl_xor_sync(~0u, l_[c], step);
    }
    if (lane() < 4) {
#pragma unroll
      for (int i = 0; i < kRowGroups; ++i)
        *reinterpret_cast<float2*>(sums(warp()) + 8 * i + pair()) = make_float2(l_[2 * i], l_[2 * i + 1]);
    }
    __syncwarp();
    ptx::named_barrier_sync(kExchangeBarrier, kComputeThreads);
#pragma unroll
    for (int i = 0; i < kRowGroups; ++i) {
      float2 sum = {0, 0};
#pragma unroll
      for (int w = 0; w < kComputeWarps; ++w) {
        const float2 part = *reinterpret_cast<const float2*>(sums(w) + 8 * i + pair());
        sum.x += part.x;
        sum.y += part.y;
      }
      l_[2 * i] = sum.x;
      l_[2 * i + 1] = sum.y;
    }
  }

  // Four threads write the maxima and sums of all rows.
  __device__ void write_statistics(const Visit& visit, int rows) const {
    const Segment& segment = visit.segment;
    const bool whole = segment.whole();
    if (whole && p_.lse == nullptr) return;
#pragma unroll
    for (int c = 0; c < kOwnRows; ++c) {
      const int row = own_row(c);
      if (row >= rows) continue;
      if (whole) {
        const portable::RowPlace place = portable::row_place<kRows>(p_, segment, row);
        p_.lse[portable::offset_of(p_.lse_stride, segment, place)] =
            l_[c] == 0.0f ? p_.empty_lse : portable::lse_of(m_[c], l_[c]);
      } else {
        p_.partial_ml[visit.partial_row + row] = make_float2(m_[c], l_[c]);
      }
    }
  }

  // O / l, rounded. A warp's 16 columns of a panel pass through shared memory, and leave as 32 bytes a row.
  __device__ void write_result(const Segment& segment, int rows) const {
    float inverse[kOwnRows];
#pragma unroll
    for (int c = 0; c < kOwnRows; ++c) inverse[c] = l_[c] == 0.0f ? 0.0f : 1.0f / l_[c];
    // Matrix j of a stmatrix: rows 8 (i + j / 2), columns 8 (j % 2). Halves of a row change places every four rows, so
    // that eight rows lie in different banks.
    const auto place = [](int row, int half) { return row * 32 + ((half ^ row / 4) & 1) * 16; };
    const int staging = Layout::kStaging + 2 * warp() * Layout::kStagingBytes;
    const int in = place(lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
    T* out[kStores];
#pragma unroll
    for (int i = 0; i < kStores; ++i) {
      const int row = 16 * i + lane() / 2;
      out[i] = nullptr;
      if (row >= rows) continue;
      out[i] = static_cast<T*>(p_.out) +
               portable::offset_of(p_.out_stride, segment, portable::row_place<kRows>(p_, segment, row)) + 16 * warp() +
               lane() % 2 * 8;
    }
#pragma unroll
    for (int panel = 0; panel < kValuePanels; ++panel) {
      const int at = staging + panel % 2 * Layout::kStagingBytes;
      uint32_t packed[2 * kRowGroups];
#pragma unroll
      for (int i = 0; i < 2 * kRowGroups; ++i) {
        const float* o = &o_[panel][2 * i];
        packed[i] = portable::pack(o[0] * inverse[i / 2 * 2], o[1] * inverse[i / 2 * 2 + 1], T());
      }
#pragma unroll
      for (int i = 0; i + 1 < kRowGroups; i += 2) {
        ptx::stmatrix_x4_trans(ring_.base + at + i * 8 * 32 + in, packed[2 * i], packed[2 * i + 1], packed[2 * i + 2],
                               packed[2 * i + 3]);
      }
      if (kRowGroups % 2 == 1)
        ptx::stmatrix_x2_trans(ring_.base + at + (kRowGroups - 1) * 8 * 32 + in, packed[2 * kRowGroups - 2],
                               packed[2 * kRowGroups - 1]);
      __syncwarp();  // the buffer before is free too: its rows were read before this warp met here
#pragma unroll
      for (int i = 0; i < kStores; ++i) {
        if (out[i] == nullptr) continue;
        write_chunk(out[i] + 64 * panel, ring_.smem + at + i * 16 * 32 + place(lane() / 2, lane() % 2));
      }
    }
  }

  __device__ void write_chunk(T* out, const unsigned char* from) const {
    if (p_.out_aligned) {
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(from);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < 8; ++i) out[i] = reinterpret_cast<const T*>(from)[i];
  }

  const DecodeKernelParams& p_;
  const Ring<Layout> ring_;
  RingPlace place_;
  uint32_t tile_ = 0;   // of the slice
  uint32_t limit_ = 0;  // keys before it are visible to all rows
  bool first_ = true;   // no tile of the segment is through
  float m_[kOwnRows];   // maxima, scaled, in log2 units; may lag behind by kStale
  float l_[kOwnRows];   // sums over this thread's keys, relative to m_; of all keys after the last tile
  float o_[kValuePanels][kSums];
};

}  // namespace flashmla::cuda::hopper
