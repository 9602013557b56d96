// Cutting a request's keys into splits (Flash-Decoding). Pure: a request's cut follows from its own length alone, so
// the bits of its result depend neither on the other requests nor on the number of threads.
#pragma once

#include <cstdint>

#include "flashmla/decode.h"

namespace flashmla {

// Keys a split has at least when the library chooses: with fewer, writing and merging partial results is noticeable.
inline constexpr int64_t kMinSplitKeys = 512;
// The library's own cuts fall on multiples of this many keys, the kernels' block.
inline constexpr int64_t kSplitGranule = 64;

struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};

struct SplitPlan {
  int64_t keys = 0;        // of the request
  int64_t split_keys = 0;  // of every split but the last ones, which may have fewer or none
  int32_t splits = 1;

  constexpr KeyRange range(int32_t split) const {
    const int64_t begin = split_keys * split < keys ? split_keys * split : keys;
    const int64_t end = begin + split_keys < keys ? begin + split_keys : keys;
    return {begin, end};
  }
};

// `forced`: DecodeOptions::splits; 0 lets the library choose.
constexpr SplitPlan plan_splits(int64_t keys, int32_t forced) {
  if (forced > 0) return {keys, (keys + forced - 1) / forced, forced};
  int64_t wanted = keys / kMinSplitKeys;
  wanted = wanted < 1 ? 1 : wanted > kMaxSplits ? kMaxSplits : wanted;
  const int64_t even = (keys + wanted - 1) / wanted;
  const int64_t split_keys = (even + kSplitGranule - 1) / kSplitGranule * kSplitGranule;
  const int64_t splits = split_keys == 0 ? 1 : (keys + split_keys - 1) / split_keys;
  return {keys, split_keys, static_cast<int32_t>(splits)};
}

static_assert(plan_splits(0, 0).splits == 1 && plan_splits(0, 0).range(0).end == 0);
static_assert(plan_splits(4096, 0).splits == 8 && plan_splits(4096, 0).range(7).end == 4096);
static_assert(plan_splits(5, 8).range(4).end == 5 && plan_splits(5, 8).range(7).begin == 5);

}  // namespace flashmla
