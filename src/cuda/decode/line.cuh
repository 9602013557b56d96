// The line of work (schedule.h) as a block sees it: lengths are read on the device, by every warp for itself, so that
// nothing has to be planned, stored or waited for.
//
// This code runs once a block, cold: what counts are dependent loads and the number of instructions.
#pragma once

#include "cuda/decode/params.h"
#include "cuda/decode/schedule.h"
#include "cuda/ptx/ptx.cuh"

namespace flashmla::cuda {

// Fetches all cache lines of the kernel's parameters at once. They would come one by one, each when it is first used.
__device__ __forceinline__ void warm_parameters(const DecodeKernelParams& p) {
  constexpr int kLineBytes = 64;
  constexpr int kLines = (sizeof(DecodeKernelParams) + kLineBytes - 1) / kLineBytes;
  const int line = threadIdx.x % kLines;
  const int word = reinterpret_cast<const int*>(&p)[line * kLineBytes / sizeof(int)];
  asm volatile("" ::"r"(word));
}

__device__ __forceinline__ int32_t clamp(int32_t value, int32_t low, int32_t high) {
  return min(max(value, low), high);
}

// Of one request, read from device memory; values that make no sense are clamped, never followed.
struct RequestSize {
  int32_t keys = 0;         // cached tokens
  int32_t tokens = 0;       // query tokens
  int32_t first_token = 0;  // ragged q: its first token among all
};

// No branch around a load: loads of neighbouring requests are in flight together. With ragged q the rows past the last
// request count as one request more, without keys.
template <LineKind kKind>
__device__ __forceinline__ RequestSize request_size(const DecodeKernelParams& p, int32_t request) {
  RequestSize size;
  const int32_t last = max(p.batch - 1, 0);
  if (p.batch > 0) size.keys = clamp(ptx::load_l2(p.seq_lens + min(request, last)), 0, p.max_keys);
  if (request > last) size.keys = 0;
  size.tokens = p.seq_q;
  if (kKind != LineKind::kAny || p.cu_seqlens_q == nullptr) return size;
  size.first_token = clamp(ptx::load_l2(p.cu_seqlens_q + min(request, p.batch)), 0, p.total_q);
  const int32_t next = clamp(ptx::load_l2(p.cu_seqlens_q + min(request + 1, p.batch)), 0, p.total_q);
  size.tokens = max((request < p.batch ? next : p.total_q) - size.first_token, 0);
  return size;
}

// Row tiles of one KV head.
template <int kRows>
__device__ __forceinline__ uint32_t row_tiles(const DecodeKernelParams& p, const RequestSize& size) {
  return (static_cast<uint32_t>(size.tokens) * p.group.divisor + kRows - 1) / kRows;
}

// A block's lane, and its position among those of the lane.
struct BlockPlace {
  uint32_t lane;
  uint32_t position;
};
template <LineKind kKind>
__device__ __forceinline__ BlockPlace block_place(const DecodeKernelParams& p) {
  if (kKind == LineKind::kAny) return {0, blockIdx.x};
  const uint32_t position = p.lanes.quotient(blockIdx.x);
  return {blockIdx.x - position * p.lanes.divisor, position};
}

// How a line of that kind is cut.
template <LineKind kKind>
__device__ __forceinline__ LineCut line_cut(const DecodeKernelParams& p, const LineTotals& line) {
  if (kKind == LineKind::kPlain) return cut_line(line, p.positions, p.costs);
  LineCut cut;
  cut.slices = slice_count(line, p.positions, p.costs.few_units, p.costs.least_units);
  cut.places = line.units;
  return cut;
}

template <int kRows, LineKind kKind>
class Line {
 public:
  struct Place {
    int32_t request = 0;
    uint32_t base = 0;  // first place of the request on the line
    RequestSize size;
  };

  __device__ explicit Line(const DecodeKernelParams& params)
      : p_(params),
        rule_(params.units),
        plain_(kKind != LineKind::kAny || (params.cu_seqlens_q == nullptr && params.units.max_splits == 0)),
        one_(kKind == LineKind::kOne || (kKind == LineKind::kAny && plain_ && params.requests == 1)) {}

  __device__ const UnitRule& rule() const { return rule_; }

  // Reads every length once. All lanes of the warp call it, and get the same answer.
  __device__ LineTotals read() {
    if (plain_) tiles_ = row_tiles<kRows>(p_, {0, p_.seq_q, 0}) * p_.heads_kv;
    if (kKind != LineKind::kAny && p_.lanes.divisor > 1) tiles_ = 1;
    if (one_) keys_[0] = clamp(ptx::load_l2(p_.seq_lens), 0, p_.max_keys);
    for (;; ++rule_.log2_keys) {  // again only with more keys than any cache holds today
      if (one_) {                 // nothing to add up: the way to the first key is short
        const uint32_t units = plain_units(keys_[0]);
        if (static_cast<uint64_t>(units) * tiles_ < kMaxUnits) return {units * tiles_, tiles_, units};
        continue;
      }
      uint64_t units = 0;
      LineTotals line;
#pragma unroll 1
      for (int32_t first = 0; first < p_.requests; first += kWindow) {
        const LineTotals window = plain_ ? read_plain(first) : read_window(first);
        // Sums of lanes below this bound fit into the scan's 32 bits; any other line is too long as it is.
        if (__any_sync(~0u, sum_ > kMaxUnits / 32)) units = kMaxUnits;
        units += __shfl_sync(~0u, before_ + sum_, 31);
        line.tiles += __reduce_add_sync(~0u, window.tiles);
        line.longest = max(line.longest, __reduce_max_sync(~0u, window.longest));
      }
      line.units = static_cast<uint32_t>(units);
      if (units < kMaxUnits) return line;
    }
  }

  // The request that holds place `at` of a line that is cut in that way. All lanes, as above; after read().
  __device__ Place find(uint32_t at, const LineCut& cut) {
    if (one_) return {0, 0, {keys_[0], p_.seq_q, 0}};
    if (kKind == LineKind::kPlain && cut.width != 0) {
      const uint32_t request = at / (cut.width * tiles_);
      return {static_cast<int32_t>(request), request * cut.width * tiles_,
              request_size<kKind>(p_, static_cast<int32_t>(request))};
    }
    const uint32_t request_price = kKind == LineKind::kPlain ? cut.price * tiles_ : 0;
    uint32_t base = 0;
    int32_t first = 0;
    uint32_t owners;
    uint32_t before;  // as before_ and sum_, in places
    uint32_t sum;
    for (;; first += kWindow) {
      if (p_.requests > kWindow) static_cast<void>(plain_ ? read_plain(first) : read_window(first));
      if (kKind == LineKind::kPlain) {
        const int32_t own = static_cast<int32_t>(threadIdx.x % 32) * kPerLane;
        const int32_t left = p_.batch - first;
        before = before_ + request_price * static_cast<uint32_t>(min(own, left));
        sum = sum_ + request_price * static_cast<uint32_t>(clamp(left - own, 0, kPerLane));
      } else {
        before = before_;
        sum = sum_;
      }
      owners = __ballot_sync(~0u, at - base >= before && at - base - before < sum);
      if (owners != 0) break;
      base += __shfl_sync(~0u, before + sum, 31);
    }
    // One of the owner lane's requests; the others follow what it finds.
    Place place{first + static_cast<int32_t>(threadIdx.x % 32) * kPerLane, base + before, {keys_[0], p_.seq_q, 0}};
#pragma unroll
    for (int k = 0; k + 1 < kPerLane; ++k) {
      if (at - place.base < units_[k] + request_price) break;
      place.base += units_[k] + request_price;
      ++place.request;
      place.size.keys = keys_[k + 1];
    }
    const int owner = __ffs(owners) - 1;
    place.request = __shfl_sync(~0u, place.request, owner);
    place.base = __shfl_sync(~0u, place.base, owner);
    place.size.keys = __shfl_sync(~0u, place.size.keys, owner);
    if (!plain_ && p_.cu_seqlens_q != nullptr) place.size = request_size<kKind>(p_, place.request);
    return place;
  }

 private:
  static constexpr int kPerLane = 4;  // neighbouring requests of one lane: independent loads
  static constexpr int kWindow = 32 * kPerLane;

  __device__ uint32_t plain_units(int32_t keys) const {
    return (static_cast<uint32_t>(max(keys, 1) - 1) >> rule_.log2_keys) + 1;
  }

  // Units of a window of requests; tiles and longest of this lane's. Where all requests have as many query tokens and
  // units are joined freely, that is short: every instruction of it is fetched for the first time.
  __device__ LineTotals read_plain(int32_t first) {
    const int32_t own = first + static_cast<int32_t>(threadIdx.x % 32) * kPerLane;
    const int32_t last = p_.batch - 1;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) keys_[k] = ptx::load_l2(p_.seq_lens + min(own + k, last));
    LineTotals mine;
    uint32_t sum = 0;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      keys_[k] = clamp(keys_[k], 0, p_.max_keys);
      const uint32_t units = plain_units(keys_[k]);
      units_[k] = own + k <= last ? units : 0;
      mine.longest = max(mine.longest, units_[k]);
      mine.tiles += own + k <= last ? tiles_ : 0;
      sum += units_[k];
      units_[k] *= tiles_;
    }
    // A request of too many units alone only has to be seen as such.
    const uint64_t exact = static_cast<uint64_t>(sum) * tiles_;
    scan(exact > kMaxUnits / 4 ? static_cast<uint32_t>(kMaxUnits / 4) : static_cast<uint32_t>(exact));
    return mine;
  }

  // The same for any q and any rule.
  __device__ LineTotals read_window(int32_t first) {
    LineTotals mine;
    const int32_t own = first + static_cast<int32_t>(threadIdx.x % 32) * kPerLane;
    RequestSize sizes[kPerLane];
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) sizes[k] = request_size<kKind>(p_, own + k);
    uint32_t sum = 0;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      const RequestSize& size = sizes[k];
      keys_[k] = size.keys;
      units_[k] = 0;
      if (own + k >= p_.requests) continue;
      const uint32_t tiles = row_tiles<kRows>(p_, size) * p_.heads_kv;
      const uint32_t units = rule_.cut(size.keys).count;
      units_[k] = static_cast<uint32_t>(min(static_cast<uint64_t>(tiles) * units, kMaxUnits / 4));
      sum += units_[k];
      mine.tiles += tiles;
      if (tiles > 0) mine.longest = max(mine.longest, units);
    }
    scan(sum);
    return mine;
  }

  __device__ void scan(uint32_t sum) {
    uint32_t inclusive = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t left = __shfl_up_sync(~0u, inclusive, step);
      if (threadIdx.x % 32 >= step) inclusive += left;
    }
    sum_ = sum;
    before_ = inclusive - sum;
  }

  const DecodeKernelParams& p_;
  UnitRule rule_;
  const bool plain_;               // as LineKind::kPlain
  const bool one_;                 // as LineKind::kOne
  uint32_t tiles_ = 0;             // of a request in a lane, where plain
  uint32_t units_[kPerLane] = {};  // of this lane's requests in the window read last
  int32_t keys_[kPerLane] = {};
  uint32_t before_ = 0;  // units of the window before this lane's
  uint32_t sum_ = 0;
};

// One visit of a tile by a slice.
struct Segment {
  int32_t request = 0;
  int32_t kv_head = 0;
  uint32_t row_tile = 0;
  RequestSize size;
  uint32_t unit_begin = 0;
  uint32_t unit_end = 0;
  uint32_t units = 0;  // of the whole tile
  uint32_t unit_keys = 0;
  bool last = false;  // of its slice

  __device__ uint32_t key_begin() const { return unit_begin * unit_keys; }
  __device__ uint32_t key_end() const { return min(unit_end * unit_keys, static_cast<uint32_t>(size.keys)); }
  __device__ bool begins_here() const { return unit_begin == 0; }
  __device__ bool whole() const { return unit_begin == 0 && unit_end == units; }
};

// Walks the tiles of a slice in order.
template <int kRows, LineKind kKind>
class Cursor {
 public:
  // From place `begin` to `end` of the line.
  __device__ Cursor(const DecodeKernelParams& params, const UnitRule& rule,
                    const typename Line<kRows, kKind>::Place& place, const LineCut& cut, uint32_t begin, uint32_t end,
                    uint32_t lane = 0)
      : p_(&params),
        log2_keys_(rule.log2_keys),
        price_(cut.price),
        width_(cut.width),
        end_(min(end, cut.places)),
        lane_(lane) {
    segment_.request = place.request;
    enter(place.size);
    const uint32_t local = begin - place.base;
    const uint32_t whole = segment_.units + price_ + padding();
    const uint32_t tile = local < whole ? 0 : local / whole;
    segment_.kv_head = static_cast<int32_t>(row_tiles_ == 1 ? tile : tile / row_tiles_);
    segment_.row_tile = lane_ + tile - segment_.kv_head * row_tiles_;
    const uint32_t first_unit = tile * whole + price_;
    const uint32_t unit = local > first_unit ? local - first_unit : 0;
    place_ = place.base + first_unit + unit;
    set_range(unit);
  }

  __device__ bool done() const { return place_ >= end_; }
  __device__ const Segment& segment() const { return segment_; }
  // Of the first unit of the segment's tile.
  __device__ uint32_t tile_place() const { return place_ - segment_.unit_begin; }

  __device__ void next() {
    place_ += segment_.unit_end - segment_.unit_begin;
    if (segment_.unit_end == segment_.units) place_ += price_ + padding();
    if (done()) return;
    if (segment_.unit_end < segment_.units) return set_range(segment_.unit_end);  // the next split of the tile
    if (++segment_.row_tile >= lane_ + row_tiles_) {
      segment_.row_tile = lane_;
      if (++segment_.kv_head == p_->heads_kv && kKind != LineKind::kOne) {
        segment_.kv_head = 0;
        do {  // ragged q: requests without query tokens have no tiles
          ++segment_.request;
          enter(request_size<kKind>(*p_, segment_.request));
        } while (row_tiles_ == 0);
      }
    }
    set_range(0);
  }

 private:
  // Places behind the tile.
  __device__ uint32_t padding() const { return kKind == LineKind::kPlain && width_ != 0 ? width_ - segment_.units : 0; }

  __device__ void enter(const RequestSize& size) {
    segment_.size = size;
    const uint32_t splits = kKind == LineKind::kAny ? p_->units.max_splits : 0;
    const Splits units = UnitRule{splits, log2_keys_, p_->units.log2_grain}.cut(size.keys);
    segment_.units = units.count;
    segment_.unit_keys = units.keys;
    row_tiles_ = row_tiles<kRows>(*p_, size);
    if (kKind != LineKind::kAny && p_->lanes.divisor > 1) row_tiles_ = 1;
  }
  __device__ void set_range(uint32_t begin) {
    segment_.unit_begin = begin;
    const uint32_t most = kKind == LineKind::kAny && p_->units.max_splits != 0 ? 1 : end_ - place_;
    segment_.unit_end = min(segment_.units - begin, most) + begin;
    segment_.last = place_ + (segment_.unit_end - begin) + price_ + padding() >= end_;
  }

  const DecodeKernelParams* p_;
  uint32_t log2_keys_;  // of the line's rule
  Segment segment_;
  uint32_t row_tiles_ = 0;  // of the request, in this lane
  uint32_t price_;
  uint32_t width_;  // as in LineCut
  uint32_t place_;  // of unit_begin
  uint32_t end_;
  uint32_t lane_;
};

// Where a segment's partial result goes. `slice` is the block's number among all lanes' slices.
template <int kRows, LineKind kKind>
__device__ __forceinline__ int64_t partial_slot(const DecodeKernelParams& p, const Segment& segment, uint32_t slice) {
  if (kKind != LineKind::kAny || p.units.max_splits == 0) return 2 * slice + (segment.begins_here() ? 1 : 0);
  // Tiles are numbered with gaps, so that nothing has to be added up over the requests.
  const int64_t first_token =
      p.cu_seqlens_q != nullptr ? segment.size.first_token : static_cast<int64_t>(segment.request) * p.seq_q;
  const int64_t first_row = first_token * p.group.divisor;
  const int64_t tile = segment.kv_head * (p.total_q * static_cast<int64_t>(p.group.divisor) / kRows + p.requests) +
                       first_row / kRows + segment.request + segment.row_tile;
  return tile * p.units.max_splits + segment.unit_begin;
}

// With few slices every second block works: neighbouring blocks share a texture processing cluster and its port.
__device__ __forceinline__ uint32_t slice_of_block(uint32_t block, uint32_t blocks, uint32_t slices) {
  if (2 * slices > blocks) return block;
  return block % 2 == 0 ? block / 2 : (blocks + 1) / 2 + block / 2;
}

}  // namespace flashmla::cuda
