// The values roles of the 64-row kernel (rows64.cuh): two warpgroups compute a half each of O += P V, and bring keys.
#pragma once

#include "cuda/decode/hopper/rows64_shared.cuh"

namespace flashmla::cuda::rows64 {

// Which of the two roles this thread has. It is asked for anew each time: there is no register to keep it in.
__device__ __forceinline__ bool in_left_half() { return threadIdx.x < 2 * kRoleThreads; }
__device__ __forceinline__ int own_barrier() { return in_left_half() ? kLeftBarrier : kRightBarrier; }

// Brings one half of the latent part, block by block, ahead of the products and over the ends of segments; the left
// half's rotating parts too. Each warp copies one panel of a unit; its lane i looks after box i of the block. The page
// ids of a block are asked for when the block before it is copied.
class Copies {
 public:
  __device__ Copies(const DecodeKernelParams& params, const CUtensorMap& kv_map, const Shared& shared)
      : p_(params), kv_map_(kv_map), shared_(shared) {
    enter_segment();
    request_pages();
  }

  // The rotating part of the next block; the call for its unit follows.
  __device__ void copy_rope(uint32_t slot) const {
    if (done_ || role_warp() != kRopeWarp) return;
    const uint32_t absent = __ballot_sync(~0u, box() < boxes() && key() < key_end_ && !has_page());
    if (ptx::elect_one()) shared_.absent(slot) = absent;
    copy_panel(shared_.rope(slot), kRopePanel, shared_.rope_full(slot));
  }

  // The unit of the next block. All warps are through with what is in its place.
  __device__ void copy_unit(uint32_t unit) const {
    if (done_) return;
    // The left half makes room for right units.
    const int panel = __shfl_sync(~0u, role_warp(), 0);  // one number for the warp
    copy_panel(shared_.unit(unit) + panel * kPanelBytes, (in_left_half() ? kUnitPanels : 0) + panel,
               shared_.unit_full(unit));
  }

  // Whether the next block is its segment's last one.
  __device__ bool ends_segment() const { return key_ + kBlockKeys >= key_end_; }

  __device__ void next_block() {
    if (done_) return;
    key_ += kBlockKeys;
    if (key_ >= key_end_) {
      done_ = shared_.segment(segment_).last;
      if (done_) return;
      ++segment_;
      enter_segment();
    }
    request_pages();
  }

 private:
  static constexpr int kRopeWarp = 3;

  // Of this lane.
  __device__ static uint32_t box() { return lane(); }
  __device__ uint32_t boxes() const { return kBlockKeys >> p_.log2_box; }
  __device__ uint32_t key() const { return key_ + (box() << p_.log2_box); }
  __device__ bool has_page() const { return static_cast<uint32_t>(page_) < static_cast<uint32_t>(p_.pages); }

  // What lies past the last key, and what has no page, gets a page outside the tensor: it arrives as zeros.
  __device__ void copy_panel(uint32_t to, int panel, uint32_t barrier) const {
    const auto token = static_cast<int32_t>(key() - p_.page_size.quotient(key()) * p_.page_size.divisor);
    const int32_t page = has_page() ? page_ : -1;
    const uint64_t policy = ptx::evict_first_policy();
    if (ptx::elect_one()) ptx::mbarrier_arrive_expect(barrier, kPanelBytes);
#pragma unroll 1
    for (uint32_t i = 0; i < boxes(); ++i) {
      const int32_t box_token = __shfl_sync(~0u, token, i);
      const int32_t box_page = __shfl_sync(~0u, page, i);
      if (ptx::elect_one()) {
        ptx::tensor_copy_4d(to + (i << p_.log2_box) * kRowBytes, &kv_map_, 0, box_token, panel, box_page, barrier,
                            policy);
      }
    }
  }

  __device__ void enter_segment() {
    const Segment& segment = shared_.wait_for_segment(segment_);
    key_ = segment.key_begin();
    key_end_ = segment.key_end();
  }

  // Entries past the segment's last key are not read.
  __device__ void request_pages() {
    page_ = -1;
    if (box() >= boxes() || key() >= key_end_) return;
    const int64_t row = shared_.segment(segment_).request * p_.table_stride;
    page_ = ptx::load_l2(p_.page_table + row + p_.page_size.quotient(key()));
  }

  const DecodeKernelParams& p_;
  const CUtensorMap& kv_map_;
  const Shared shared_;
  uint32_t segment_ = 0;
  uint32_t key_ = 0;  // first one of the next block
  uint32_t key_end_ = 0;
  int32_t page_ = -1;  // of this lane's box in the next block
  bool done_ = false;  // there is no next block
};

// A thread of the right half walks the slice; segment `number` comes next. It is found before anybody asks for it,
// because lengths may have to be read, and outside the products, where registers are free.
template <LineKind kKind>
__device__ __forceinline__ void find_segment(const DecodeKernelParams& p, const Shared& shared, uint32_t number) {
  Cursor<kRows, kKind>* cursor = shared.cursor<kKind>();
  if (threadIdx.x == kFinder && !cursor->segment().last) {
    cursor->next();
    const Segment& segment = cursor->segment();
    shared.note_visit(number, {segment, partial_slot<kRows, kKind>(p, segment, shared.part()) * kRows});
  }
  __syncwarp();
}

// One half of O: 256 columns, in the accumulator of m64n256k16 (wgmma.cuh).
template <typename T>
class Values {
 public:
  __device__ Values(const DecodeKernelParams& params, const Shared& shared) : p_(params), shared_(shared) {}

  __device__ void begin() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) o_[i] = 0;
  }

  // P and the factors are there: O follows the rows' maxima.
  __device__ void rescale() {
    const float low = shared_.factors()[own_row()];
    const float high = shared_.factors()[own_row() + 8];
    if (__any_sync(~0u, low != 1.0f || high != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) o_[i] *= i / 2 % 2 == 0 ? low : high;
    }
  }

  // Rows past the last key may hold anything, and 0 x NaN is NaN.
  __device__ void clear_rows(uint32_t unit, uint32_t from) const {
    const int chunks = static_cast<int>(kBlockKeys - from) * (kRowBytes / 16);
    unsigned char* first = shared_.unit_memory(unit) + from * kRowBytes;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % kRoleThreads; i < chunks; i += kRoleThreads) {
#pragma unroll
      for (int panel = 0; panel < kUnitPanels; ++panel)
        *reinterpret_cast<uint4*>(first + panel * kPanelBytes + i * 16) = make_uint4(0, 0, 0, 0);
    }
    ptx::async_proxy_fence();
    ptx::named_barrier_sync(own_barrier(), kRoleThreads);
  }

  // O += P V of the unit: asks the tensor cores for it ..
  __device__ void begin_product(uint32_t unit) {
    const Shared shared = shared_.uniform();
    const uint64_t p = ptx::wgmma_descriptor(shared.p());
    const uint64_t v = ptx::wgmma_descriptor(shared.unit(unit), kPanelBytes);
    ptx::wgmma_tie(o_);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kBlockKeys / 16; ++step) {
      ptx::wgmma_ss<ptx::kKMajor, ptx::kMnMajor>(o_, p + ptx::wgmma_offset(step * 32),
                                                 v + ptx::wgmma_offset(step * 16 * kRowBytes), true, T());
    }
    ptx::wgmma_commit();
  }
  // .. and waits until it is there.
  __device__ void end_product() {
    ptx::wgmma_wait<0>();
    ptx::wgmma_tie(o_);
  }

  // Writes what has been summed up in segment `number`.
  __device__ void finish(uint32_t number) const {
    const Visit& visit = shared_.visit(number);
    const Segment& segment = visit.segment;
    const int rows = portable::tile_rows<kRows>(p_, segment);
    const bool whole = __any_sync(~0u, segment.whole());
    if (!whole) return write_partial(visit.partial_row);
    const portable::RowPlace place = portable::row_place<kRows>(p_, segment, min(own_row(), rows - 1));
    T* out = static_cast<T*>(p_.out) + portable::offset_of(p_.out_stride, segment, place);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int own = own_row() + 8 * h;
      if (h == 1 && rows_are_even(p_)) {
        out += 8 * p_.out_stride.head;
      } else if (h == 1) {
        const portable::RowPlace other = portable::row_place<kRows>(p_, segment, min(own, rows - 1));
        out = static_cast<T*>(p_.out) + portable::offset_of(p_.out_stride, segment, other);
      }
      if (p_.out_aligned)
        write_result<true>(out, h, shared_.inverses(number)[own], own < rows);
      else
        write_result<false>(out, h, shared_.inverses(number)[own], own < rows);
    }
  }

 private:
  static constexpr int kSums = 128;
  static constexpr int kHalfColumns = kMaxLatent / 2;
  __device__ static int first_column() { return in_left_half() ? 0 : kHalfColumns; }

  // Pairs of lanes swap a word, so that each has four neighbouring columns of every second group of eight.
  template <bool kAligned>
  __device__ void write_result(T* row, int h, float inverse, bool exists) const {
    const bool odd = lane() % 2 != 0;
    T* out = row + first_column() + lane() % 4 / 2 * 4 + (odd ? 8 : 0);
#pragma unroll
    for (int group = 0; group < kHalfColumns / 8; group += 2) {
      const float* first = &o_[4 * group + 2 * h];
      const float* second = first + 4;
      const uint32_t a = portable::pack(first[0] * inverse, first[1] * inverse, T());
      const uint32_t b = portable::pack(second[0] * inverse, second[1] * inverse, T());
      const uint32_t other = __shfl_xor_sync(~0u, odd ? a : b, 1);
      const uint2 packed = odd ? make_uint2(other, b) : make_uint2(a, other);
      if (kAligned) {
        if (exists) *reinterpret_cast<uint2*>(out + 8 * group) = packed;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (exists) out[8 * group + i] = reinterpret_cast<const T*>(&packed)[i];
        }
      }
    }
  }

  // As the threads hold it, for the combine kernel (Rows64Order in combine_fragments.cuh).
  __device__ void write_partial(int64_t partial_row) const {
    auto* out = reinterpret_cast<float4*>(p_.partial_out + partial_row * kMaxLatent) +
                first_column() / 8 * kRoleThreads + threadIdx.x % kRoleThreads;
#pragma unroll
    for (int group = 0; group < kHalfColumns / 8; ++group) {
      const float* o = &o_[4 * group];
      out[group * kRoleThreads] = make_float4(o[0], o[2], o[1], o[3]);
    }
  }

  const DecodeKernelParams& p_;
  const Shared shared_;
  float o_[kSums];
};

// Both halves run the same code: what is fetched for the one is there for the other.
template <typename T, LineKind kKind>
__device__ __forceinline__ void values_role(const DecodeKernelParams& p, const CUtensorMap& kv_map,
                                            const Shared& shared) {
  const bool left = in_left_half();
  Copies copies(p, kv_map, shared);
  uint32_t found = 0;  // number of the last segment found
#pragma unroll 1
  for (uint32_t unit = left ? 1 : 0; unit < kUnits; unit += 2) {
    if (left) copies.copy_rope(unit / 2);
    copies.copy_unit(unit);
    if (!left && copies.ends_segment()) find_segment<kKind>(p, shared, ++found);
    copies.next_block();
  }
  while (!left && found < kFoundAhead) find_segment<kKind>(p, shared, ++found);
  if (threadIdx.x % kRoleThreads == 0) ptx::grid_dependency_launch();
  ptx::named_barrier_arrive(kPFreeBarrier, 3 * kRoleThreads);
  Values<T> values(p, shared);
  uint32_t unit = left ? 0 : 1;  // of the current block
  uint32_t slot = 0;             // of its rotating part
  for (uint32_t number = 0;; ++number) {
    const Segment& segment = shared.segment(number);
    const int blocks = block_count(segment);
    values.begin();
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const bool ends = block == blocks - 1;
      ptx::named_barrier_sync(left ? kLeftPBarrier : kRightPBarrier, 2 * kRoleThreads);
      values.rescale();
      if (ends && segment.key_end() % kBlockKeys != 0) values.clear_rows(unit, segment.key_end() % kBlockKeys);
      // One half of the values leaves the tensor cores to the scores, so that these do not fall behind.
      if (!left && !ends) ptx::named_barrier_sync(kScoresAskedBarrier, 2 * kRoleThreads);
      values.begin_product(unit);
      // P is there: the scores of its block are complete, and so its rotating part is free.
      if (left) copies.copy_rope(slot);
      slot ^= 1;
      values.end_product();
      if (ends) ptx::named_barrier_sync(kSegmentDoneBarrier, 3 * kRoleThreads);  // the row sums are there
      if (!ends || !segment.last) ptx::named_barrier_arrive(kPFreeBarrier, 3 * kRoleThreads);
      ptx::named_barrier_sync(own_barrier(), kRoleThreads);
      copies.copy_unit(unit);
      copies.next_block();
      unit = unit + 2 < kUnits ? unit + 2 : unit + 2 - kUnits;
    }
    values.finish(number);
    if (segment.last) return;
    if (!left) find_segment<kKind>(p, shared, number + kFoundAhead + 1);
  }
}

}  // namespace flashmla::cuda::rows64
