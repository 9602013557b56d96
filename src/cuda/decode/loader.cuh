// The ring in shared memory and how it is filled (kernel_sm80.cuh).
#pragma once

#include "cuda/decode/rows.cuh"
#include "cuda/tile/layout.h"

namespace flashmla::cuda::portable {

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
  __device__ Loader(const DecodeKernelParams& params, const Cursor<C.rows, LineKind::kAny>& cursor, unsigned char* smem,
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
  Cursor<C.rows, LineKind::kAny> cursor_;
  Segment* const segments_;
  int next_segment_ = 0;
  unsigned char* const smem_;
  const uint32_t ring_;             // this thread's first chunk of stage 0
  uint32_t key_stages_ = 0;         // of the segment, still to be issued; 0: its queries come next
  const int32_t* table_ = nullptr;  // the request's row
  const char* head_ = nullptr;      // the KV head's first chunk of this lane
  uint32_t key_end_ = 0;
  uint32_t key_ = 0;  // this thread's key in the stage that is issued next
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

}  // namespace flashmla::cuda::portable
