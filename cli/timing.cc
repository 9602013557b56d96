#include "timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace flashmla::cli {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kWarmUps = 3;
constexpr double kWarmUpSeconds = 0.1;
constexpr double kLeastSeconds = 0.5;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Linear between the two neighbours of the wanted rank.
double quantile(const std::vector<double>& sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], rank - static_cast<double>(below));
}

}  // namespace

Times summarise(std::vector<double> times_us) {
  std::ranges::sort(times_us);
  return {quantile(times_us, 0.5), quantile(times_us, 0.1), quantile(times_us, 0.9), times_us.front(),
          static_cast<int64_t>(times_us.size())};
}

Times time_repeats(const std::function<void(int64_t repeat)>& run, double most_seconds) {
  int64_t calls = 0;
  const Clock::time_point warm_up = Clock::now();
  while ((calls < kWarmUps || seconds_since(warm_up) < kWarmUpSeconds) &&
         (calls == 0 || seconds_since(warm_up) < most_seconds)) {
    run(calls++);
  }
  std::vector<double> times_us;
  const Clock::time_point start = Clock::now();
  double elapsed = 0;
  while (times_us.empty() || (elapsed < most_seconds &&
                              (static_cast<int64_t>(times_us.size()) < kLeastRepeats || elapsed < kLeastSeconds))) {
    const Clock::time_point before = Clock::now();
    run(calls++);
    const Clock::time_point after = Clock::now();
    times_us.push_back(std::chrono::duration<double, std::micro>(after - before).count());
    elapsed = std::chrono::duration<double>(after - start).count();
  }
  return summarise(std::move(times_us));
}

}  // namespace flashmla::cli
