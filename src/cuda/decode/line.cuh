// The line of work (schedule.h) as a block sees it: lengths are read on the device, by every warp for itself, so that
// nothing has to be planned, stored or waited for.
#pragma once

#include "cuda/decode/params.h"
#include "cuda/decode/schedule.h"
#include "cuda/ptx/ptx.cuh"

namespace flashmla::cuda {

// Of one request, read from device memory; values that make no sense are clamped, never followed.
struct RequestSize {
  int32_t keys = 0;        // cached tokens
  int32_t tokens = 0;      // query tokens
  int32_t first_token = 0; // ragged q: its first token among all
};

__device__ __forceinline__ int32_t clamp(int32_t value, int32_t low, int32_t high) {
  return value < low ? low : value > high ? high : value;
}

__device__ __forceinline__ RequestSize request_size(const DecodeKernelParams& p, int32_t request) {
  RequestSize size;
  if (request < p.batch) size.keys = clamp(ptx::load_l2(p.seq_lens + request), 0, p.max_keys);
  if (p.cu_seqlens_q == nullptr) {
    size.tokens = p.seq_q;
    return size;
  }
  size.first_token = clamp(ptx::load_l2(p.cu_seqlens_q + request), 0, p.total_q);
  const int32_t end = request < p.batch ? clamp(ptx::load_l2(p.cu_seqlens_q + request + 1), 0, p.total_q) : p.total_q;
  size.tokens = end > size.first_token ? end - size.first_token : 0;
  return size;
}

template <int kRows>
class Line {
 public:
  struct Place {
    int32_t request = 0;
    int64_t base = 0;  // first unit of the request
  };

  __device__ explicit Line(const DecodeKernelParams& params) : p_(params), lane_(threadIdx.x % 32) {}

  __device__ int32_t row_tiles(const RequestSize& size) const {
    return (size.tokens * static_cast<int32_t>(p_.group.divisor) + kRows - 1) / kRows;
  }
  __device__ int64_t tiles(const RequestSize& size) const {
    return static_cast<int64_t>(row_tiles(size)) * p_.heads_kv;
  }

  // Reads every length once. All lanes of the warp call it, and get the same answer.
  __device__ LineTotals read() {
    LineTotals line;
    if (p_.requests == 1) {
      const RequestSize size = request_size(p_, 0);
      line.tiles = tiles(size);
      line.longest = p_.units.units(size.keys);
      line.units = line.tiles * line.longest;
      return line;
    }
    for (int32_t first = 0; first < p_.requests; first += kWindow) {
      int64_t window_tiles = 0;
      uint32_t longest = 0;
      load_window(first, window_tiles, longest);
      line.units += __shfl_sync(~0u, before_ + sum_, 31);
      line.tiles += p_.cu_seqlens_q == nullptr ? 0 : warp_sum(window_tiles);
      const uint32_t most = __reduce_max_sync(~0u, longest);
      if (most > line.longest) line.longest = most;
    }
    if (p_.cu_seqlens_q == nullptr) line.tiles = static_cast<int64_t>(p_.batch) * tiles(request_size(p_, p_.batch));
    return line;
  }

  // The request that holds unit `unit` (below the total). All lanes, as above; after read().
  __device__ Place find(int64_t unit) {
    if (p_.requests == 1) return {};
    int64_t base = 0;
    for (int32_t first = 0;; first += kWindow) {
      if (p_.requests > kWindow) {
        int64_t window_tiles;
        uint32_t longest;
        load_window(first, window_tiles, longest);
      }
      const int64_t local = unit - base;
      const uint32_t here = __ballot_sync(~0u, local >= before_ && local < before_ + sum_);
      if (here != 0) {
        Place place{first + lane_ * kPerLane, before_};
#pragma unroll
        for (int k = 0; k + 1 < kPerLane; ++k) {
          if (local >= place.base + units_[k] && place.request == first + lane_ * kPerLane + k) {
            ++place.request;
            place.base += units_[k];
          }
        }
        const int owner = __ffs(here) - 1;
        return {__shfl_sync(~0u, place.request, owner), base + __shfl_sync(~0u, place.base, owner)};
      }
      base += __shfl_sync(~0u, before_ + sum_, 31);
    }
  }

 private:
  static constexpr int kPerLane = 8;  // neighbouring requests of one lane: independent loads
  static constexpr int kWindow = 32 * kPerLane;

  __device__ static int64_t warp_sum(int64_t value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
  }

  __device__ void load_window(int32_t first, int64_t& window_tiles, uint32_t& longest) {
    sum_ = 0;
    window_tiles = 0;
    longest = 0;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      const int32_t request = first + lane_ * kPerLane + k;
      units_[k] = 0;
      if (request >= p_.requests) continue;
      const RequestSize size = request_size(p_, request);
      const int64_t request_tiles = tiles(size);
      const int64_t units = p_.units.units(size.keys);
      units_[k] = request_tiles * units;
      sum_ += units_[k];
      window_tiles += request_tiles;
      if (request_tiles > 0 && units > longest) longest = static_cast<uint32_t>(units);
    }
    int64_t inclusive = sum_;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int64_t left = __shfl_up_sync(~0u, inclusive, step);
      if (lane_ >= step) inclusive += left;
    }
    before_ = inclusive - sum_;
  }

  const DecodeKernelParams& p_;
  int lane_;
  int64_t units_[kPerLane] = {};  // of this lane's requests in the window read last
  int64_t before_ = 0;            // units of the window before this lane's
  int64_t sum_ = 0;
};

// One visit of a tile by a slice.
struct Segment {
  int32_t request = 0;
  int32_t kv_head = 0;
  int32_t row_tile = 0;
  RequestSize size;
  int64_t unit_begin = 0;
  int64_t unit_end = 0;
  int64_t units = 0;  // of the whole tile
  int64_t unit_keys = 0;

  __device__ int32_t key_begin() const { return static_cast<int32_t>(unit_begin * unit_keys); }
  __device__ int32_t key_end() const {
    const int64_t end = unit_end * unit_keys;
    return end < size.keys ? static_cast<int32_t>(end) : size.keys;
  }
  __device__ bool begins_here() const { return unit_begin == 0; }
  __device__ bool whole() const { return unit_begin == 0 && unit_end == units; }
};

// Walks the tiles of a slice in order.
template <int kRows>
class Cursor {
 public:
  __device__ Cursor(const DecodeKernelParams& params, typename Line<kRows>::Place place, int64_t begin, int64_t end)
      : p_(&params), unit_(begin), end_(end) {
    if (unit_ >= end_) return;
    segment_.request = place.request;
    enter(request_size(*p_, place.request));
    const int64_t local = begin - place.base;
    const int64_t tile = divide(local, segment_.units);
    segment_.kv_head = static_cast<int32_t>(divide(tile, row_tiles_));
    segment_.row_tile = static_cast<int32_t>(tile - static_cast<int64_t>(segment_.kv_head) * row_tiles_);
    set_range(local - tile * segment_.units);
  }

  __device__ bool done() const { return unit_ >= end_; }
  __device__ int64_t unit() const { return unit_; }  // on the line
  __device__ const Segment& segment() const { return segment_; }

  __device__ void next() {
    unit_ += segment_.unit_end - segment_.unit_begin;
    if (done()) return;
    if (segment_.unit_end < segment_.units) return set_range(segment_.unit_end);  // the next split of the tile
    if (++segment_.row_tile == row_tiles_) {
      segment_.row_tile = 0;
      if (++segment_.kv_head == p_->heads_kv) {
        segment_.kv_head = 0;
        do {  // ragged q: requests without query tokens have no tiles
          ++segment_.request;
          enter(request_size(*p_, segment_.request));
        } while (row_tiles_ == 0);
      }
    }
    set_range(0);
  }

 private:
  __device__ void enter(const RequestSize& size) {
    segment_.size = size;
    segment_.units = p_->units.units(size.keys);
    segment_.unit_keys = p_->units.unit_keys(size.keys);
    row_tiles_ = Line<kRows>(*p_).row_tiles(size);
  }
  __device__ void set_range(int64_t begin) {
    segment_.unit_begin = begin;
    const int64_t left = p_->units.max_splits != 0 ? 1 : end_ - unit_;
    segment_.unit_end = segment_.units - begin < left ? segment_.units : begin + left;
  }

  const DecodeKernelParams* p_;
  Segment segment_;
  int32_t row_tiles_ = 0;
  int64_t unit_;
  int64_t end_;
};

// Where a segment's partial result goes.
template <int kRows>
__device__ __forceinline__ int64_t partial_slot(const DecodeKernelParams& p, const Segment& segment, int slice) {
  if (p.units.max_splits == 0) return 2 * static_cast<int64_t>(slice) + (segment.begins_here() ? 1 : 0);
  // Tiles are numbered with gaps, so that nothing has to be added up over the requests.
  const int64_t first_token =
      p.cu_seqlens_q != nullptr ? segment.size.first_token : static_cast<int64_t>(segment.request) * p.seq_q;
  const int64_t first_row = first_token * p.group.divisor;
  const int64_t tile = segment.kv_head * (p.total_q * static_cast<int64_t>(p.group.divisor) / kRows + p.requests) +
                       first_row / kRows + segment.request + segment.row_tile;
  return tile * p.units.max_splits + segment.unit_begin;
}

// With few slices every second block works: neighbouring blocks share a texture processing cluster and its port.
__device__ __forceinline__ int slice_of_block(int block, int blocks, int slices) {
  if (2 * slices > blocks) return block;
  return block % 2 == 0 ? block / 2 : (blocks + 1) / 2 + block / 2;
}

}  // namespace flashmla::cuda
