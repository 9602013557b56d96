// The split planner. FlashInfer #890: a scheduler that hangs or leaves keys out in some cases.
#include "sched/split.h"

#include <gtest/gtest.h>

#include "cases/random.h"

namespace flashmla {
namespace {

// Ranges follow one another from 0 to `keys`, nothing twice, nothing left out.
void expect_exact_cover(int64_t keys, SplitRule rule) {
  const SplitPlan plan = plan_splits(keys, rule);
  ASSERT_GE(plan.splits, 1);
  ASSERT_LE(plan.splits, kMaxSplits);
  int64_t end = 0;
  for (int32_t split = 0; split < plan.splits; ++split) {
    const KeyRange range = plan.range(split);
    ASSERT_EQ(range.begin, end) << "keys " << keys << ", split " << split << " of " << plan.splits;
    ASSERT_LE(range.begin, range.end);
    end = range.end;
  }
  ASSERT_EQ(end, keys) << plan.splits << " splits";
}

TEST(Split, CoversEveryKeyOnce) {
  cases::Random random({11});
  for (int64_t keys = 0; keys < 3000; ++keys) {
    expect_exact_cover(keys, SplitRule::own_length());
    expect_exact_cover(keys, {.forced = 1 + static_cast<int32_t>(random.below(kMaxSplits))});
  }
  for (int i = 0; i < 100'000; ++i) {
    const int64_t keys = static_cast<int64_t>(random.next() >> (33 + random.below(31)));  // up to 2^31 - 1, every size
    expect_exact_cover(keys, SplitRule::own_length());
    expect_exact_cover(keys, {.forced = 1 + static_cast<int32_t>(random.below(kMaxSplits))});
    expect_exact_cover(keys, SplitRule::whole_call(keys * (1 + random.below(4096)), 1 + random.below(512)));
  }
}

TEST(Split, ForcedCountsAreKept) {
  for (int32_t splits = 1; splits <= kMaxSplits; ++splits) {
    for (int64_t keys : {0, 1, 63, 64, 1000, 1 << 20}) {
      EXPECT_EQ(plan_splits(keys, {.forced = splits}).splits, splits);
    }
  }
}

TEST(Split, OwnCutsAreBlocksAndLongEnough) {
  for (int64_t keys = 1; keys < 100'000; keys += 37) {
    const SplitPlan plan = plan_splits(keys, SplitRule::own_length());
    if (plan.splits == 1) continue;
    EXPECT_EQ(plan.split_keys % kSplitGranule, 0);
    EXPECT_GT(keys, kMinSplitKeys) << "short requests stay whole";
    EXPECT_GT(plan.range(plan.splits - 1).end, plan.range(plan.splits - 1).begin) << "no split without keys";
  }
}

}  // namespace
}  // namespace flashmla
