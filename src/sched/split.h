// Cutting requests' keys into splits (Flash-Decoding). Pure; never looks at the number of threads, so that the bits of
// a result do not depend on it.
#pragma once

#include <cstdint>

#include "flashmla/decode.h"

namespace flashmla {

// Keys a split has at least when the library chooses: writing and merging partial results was seen to take 6 %
// of the time at twice this length (128 rows, two processors short of memory bandwidth).
inline constexpr int64_t kMinSplitKeys = 512;
// The library's own cuts fall on multiples of this many keys, the kernels' block.
inline constexpr int64_t kSplitGranule = 64;
// Splits per processor of the machine that a whole call is cut into: enough for the last ones to finish together.
inline constexpr int64_t kSplitsPerProcessor = 8;

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

// How the requests of one call are cut.
struct SplitRule {
  int32_t forced = 0;      // DecodeOptions::splits; 0: by split_keys
  int64_t split_keys = 0;  // a multiple of kSplitGranule

  // From a request's own length alone ("batch-invariant mode").
  static constexpr SplitRule own_length() { return {0, kMinSplitKeys}; }

  // For `keys` keys in all (of every request, KV head and row tile) on a machine of `processors`.
  static constexpr SplitRule whole_call(int64_t keys, int64_t processors) {
    const int64_t even = keys / (processors * kSplitsPerProcessor);
    return {0, even <= kMinSplitKeys ? kMinSplitKeys : (even + kSplitGranule - 1) / kSplitGranule * kSplitGranule};
  }
};

constexpr SplitPlan plan_splits(int64_t keys, SplitRule rule) {
  if (rule.forced > 0) return {keys, (keys + rule.forced - 1) / rule.forced, rule.forced};
  // Equal parts of about split_keys, at most kMaxSplits of them.
  int64_t wanted = (keys + rule.split_keys - 1) / rule.split_keys;
  wanted = wanted < 1 ? 1 : wanted > kMaxSplits ? kMaxSplits : wanted;
  const int64_t even = (keys + wanted - 1) / wanted;
  const int64_t split_keys = (even + kSplitGranule - 1) / kSplitGranule * kSplitGranule;
  const int64_t splits = split_keys == 0 ? 1 : (keys + split_keys - 1) / split_keys;
  return {keys, split_keys, static_cast<int32_t>(splits)};
}

static_assert(plan_splits(0, SplitRule::own_length()).splits == 1);
static_assert(plan_splits(4096, SplitRule::own_length()).splits == 8);
static_assert(plan_splits(4096, SplitRule::whole_call(8 * 4096, 2)).splits == 2);
static_assert(plan_splits(1 << 30, SplitRule::own_length()).splits == kMaxSplits);
static_assert(plan_splits(5, {8, 0}).range(4).end == 5 && plan_splits(5, {8, 0}).range(7).begin == 5);

}  // namespace flashmla
