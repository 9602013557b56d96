// The fuzz targets on seeded random bytes: the same files on every machine.
#include "checkpoint_fuzz.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "cases/random.h"

namespace flashmla::fuzz {
namespace {

constexpr uint64_t kSeed = 0x5afe;
#if defined(FLASHMLA_FUZZ_FEW)
constexpr int64_t kIterations = 3000;  // under a sanitizer
#else
constexpr int64_t kIterations = 30000;
#endif

template <class Target>
Counts run(const Target& target) {
  Counts counts;
  for (int64_t i = 0; i < kIterations; ++i) {
    cases::Random random({kSeed, static_cast<uint64_t>(i)});
    std::array<uint8_t, 256> data;
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.next() >> 56);
    Bytes bytes(data);
    const std::string problem = target(bytes, counts);
    EXPECT_EQ(problem, "") << "iteration " << i << ", seed " << kSeed;
    if (!problem.empty()) break;
  }
  std::printf("%lld files, %lld accepted\n", static_cast<long long>(kIterations),
              static_cast<long long>(counts.accepted));
  return counts;
}

TEST(CheckpointFuzz, Safetensors) {
  const Counts counts = run(fuzz_safetensors);
  EXPECT_GT(counts.accepted, kIterations / 4) << "too few files get past the checks";
  EXPECT_LT(counts.accepted, kIterations * 9 / 10) << "too few files are damaged";
}

TEST(CheckpointFuzz, Config) {
  const Counts counts = run(fuzz_config);
  EXPECT_GT(counts.run, kIterations / 50);
  EXPECT_LT(counts.accepted, kIterations * 9 / 10);
}

TEST(CheckpointFuzz, ShardIndex) {
  const Counts counts = run(fuzz_shard_index);
  EXPECT_GT(counts.accepted, kIterations / 20);
  EXPECT_LT(counts.accepted, kIterations * 9 / 10);
}

}  // namespace
}  // namespace flashmla::fuzz
