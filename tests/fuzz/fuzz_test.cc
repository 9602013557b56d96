// The fuzz targets on seeded random bytes: the same calls on every machine.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "cases/random.h"
#include "targets.h"

namespace flashmla::fuzz {
namespace {

constexpr uint64_t kSeed = 0x6d6c61;
#if defined(FLASHMLA_FUZZ_FEW)
constexpr int64_t kIterations = 5000;  // under a sanitizer
#else
constexpr int64_t kIterations = 100000;
#endif

volatile int64_t current_iteration = -1;

// A crash says which iteration it was; then the handler that stood before (a sanitizer's, or none) has its turn.
class CrashNote {
 public:
  CrashNote() {
    struct sigaction note {};
    note.sa_handler = [](int) {
      char text[96];
      const int length = std::snprintf(text, sizeof text, "fuzzing crashed in iteration %lld\n",
                                       static_cast<long long>(current_iteration));
      if (write(STDERR_FILENO, text, static_cast<size_t>(length)) < 0) _exit(3);
      sigaction(SIGSEGV, &before, nullptr);
    };
    sigaction(SIGSEGV, &note, &before);
  }
  ~CrashNote() { sigaction(SIGSEGV, &before, nullptr); }
  CrashNote(const CrashNote&) = delete;
  CrashNote& operator=(const CrashNote&) = delete;

 private:
  static inline struct sigaction before {};
};

std::array<uint8_t, 256> random_bytes(int64_t iteration) {
  cases::Random random({kSeed, static_cast<uint64_t>(iteration)});
  std::array<uint8_t, 256> data;
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.next() >> 56);
  return data;
}

// FLASHMLA_FUZZ_ONLY=N runs iteration N alone.
template <class Target>
Counts run(const Target& target) {
  const CrashNote note;
  Counts counts;
  const char* only = std::getenv("FLASHMLA_FUZZ_ONLY");
  const int64_t first = only == nullptr ? 0 : std::atoll(only);
  const int64_t last = only == nullptr ? kIterations : first + 1;
  for (int64_t i = first; i < last; ++i) {
    current_iteration = i;
    const auto data = random_bytes(i);
    Bytes bytes(data);
    const std::string problem = target(bytes, counts);
    EXPECT_EQ(problem, "") << "iteration " << i << ", seed " << kSeed;
    if (!problem.empty()) break;
  }
  std::printf("%lld calls, %lld accepted, %lld run\n", static_cast<long long>(last - first),
              static_cast<long long>(counts.accepted), static_cast<long long>(counts.run));
  return counts;
}

TEST(Fuzz, Decode) {
  const Counts counts = run(fuzz_decode);
  EXPECT_GT(counts.run, kIterations / 4) << "too few calls get past the checks";
  EXPECT_LT(counts.accepted, kIterations * 9 / 10) << "too few calls are damaged";
}

TEST(Fuzz, Prefill) {
  const Counts counts = run(fuzz_prefill);
  EXPECT_GT(counts.run, kIterations / 4);
  EXPECT_LT(counts.accepted, kIterations * 9 / 10);
}

TEST(Fuzz, AppendKv) {
  const Counts counts = run(fuzz_append_kv);
  EXPECT_GT(counts.run, kIterations / 4);
  EXPECT_LT(counts.accepted, kIterations * 9 / 10);
}

TEST(Fuzz, MergeStates) {
  const Counts counts = run(fuzz_merge_states);
  EXPECT_GT(counts.run, kIterations / 4);
  EXPECT_LT(counts.accepted, kIterations * 9 / 10);
}

TEST(Fuzz, CApi) {
  const Counts counts = run(fuzz_c_api);
  EXPECT_GT(counts.accepted, kIterations / 8);
  EXPECT_LT(counts.accepted, kIterations * 9 / 10);
}

TEST(Fuzz, DecodeSizes) {
  const Counts counts = run(fuzz_decode_sizes);
  EXPECT_GT(counts.accepted, kIterations / 8);
}

}  // namespace
}  // namespace flashmla::fuzz
