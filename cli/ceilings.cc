#include "ceilings.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "ceiling_loops.h"
#include "flashmla/cpu.h"
#include "table.h"

namespace flashmla::cli {

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kTrialSeconds = 0.06;
constexpr int kTrials = 3;
constexpr int64_t kLeastReadBytes = int64_t{256} << 20;
constexpr int64_t kReadChunk = int64_t{1} << 20;
constexpr size_t kHugePage = size_t{2} << 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Runs `work(thread)`, which returns an amount (flops or bytes), again and again on every thread for kTrialSeconds.
// Returns the sum of the threads' own rates, the best of kTrials. The threads are the library's, placed as its own work
// is; each stops by its own clock, so that a late one takes nothing from the others.
template <class Work>
double best_rate(int threads, const Work& work) {
  double best = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> rates(static_cast<size_t>(threads));
    run_workers(threads, [&](int32_t thread) {
      const Clock::time_point start = Clock::now();
      double amount = 0;
      double seconds = 0;
      while (seconds < kTrialSeconds) {
        amount += work(thread);
        seconds = seconds_since(start);
      }
      rates[static_cast<size_t>(thread)] = amount / seconds;
    });
    double sum = 0;
    for (const double rate : rates) sum += rate;
    best = std::max(best, sum);
  }
  return best;
}

double measure_compute(const ComputeLoop& loop, int threads) {
  constexpr int64_t kRounds = 20000;
  return best_rate(threads, [&](int) {
    loop.run(kRounds);
    return static_cast<double>(kRounds * loop.flops_a_round);
  });
}

// Each thread reads its own slice, chunk after chunk, going on where the trial before stopped.
double measure_read(const ReadLoop& loop, const std::byte* data, int64_t bytes, int threads) {
  struct alignas(64) Cursor {
    int64_t chunk = 0;
  };
  const int64_t chunks = bytes / kReadChunk / threads;
  std::vector<Cursor> cursors(static_cast<size_t>(threads));
  return best_rate(threads, [&](int thread) {
    int64_t& chunk = cursors[static_cast<size_t>(thread)].chunk;
    loop.run(data + (thread * chunks + chunk) * kReadChunk, kReadChunk);
    chunk = (chunk + 1) % chunks;
    return static_cast<double>(kReadChunk);
  });
}

}  // namespace

MeasuredCeilings measure_ceilings(DType dtype, int threads) {
  const CpuInfo cpu = cpu_info();
  MeasuredCeilings ceilings;
  // More threads than processors would each be measured at a time of their own, and add up to more than there is.
  ceilings.threads = threads > 0 ? std::min(threads, std::max(cpu.threads, 1)) : std::max(cpu.threads, 1);

  const ComputeLoop& compute = compute_loop(cpu.isas, dtype);
  ceilings.compute_loop = compute.name;
  ceilings.value.peak_gflops = measure_compute(compute, ceilings.threads) * 1e-9;

  const ReadLoop& read = read_loop(cpu.isas);
  int64_t bytes = std::max(kLeastReadBytes, 4 * cpu.l3_bytes);
  bytes = std::max(bytes / kReadChunk, int64_t{ceilings.threads}) * kReadChunk;
  const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(kHugePage, static_cast<size_t>(bytes)),
                                                           &std::free);
  if (buffer == nullptr) return ceilings;
  madvise(buffer.get(), static_cast<size_t>(bytes), MADV_HUGEPAGE);  // fewer TLB misses; a refusal changes nothing else
  std::memset(buffer.get(), 1, static_cast<size_t>(bytes));
  ceilings.read_loop = fmt::format("{} over {}", read.name, bytes_text(static_cast<double>(bytes)));
  ceilings.value.peak_gbps =
      measure_read(read, static_cast<const std::byte*>(buffer.get()), bytes, ceilings.threads) * 1e-9;
  return ceilings;
}

}  // namespace flashmla::cli
