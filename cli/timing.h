// Timing one decode shape: repeats over rotating copies of its tensors, and what they spread over.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace flashmla::cli {

inline constexpr int64_t kLeastRepeats = 20;

struct Times {
  double median_us = 0;
  double p10_us = 0;
  double p90_us = 0;
  double least_us = 0;
  int64_t repeats = 0;
};

// Of at least one measured time.
Times summarise(std::vector<double> times_us);

// Calls `run(repeat)` untimed for a tenth of a second, at least 3 times, then timed: at least kLeastRepeats times and
// for half a second, but for no longer than `most_seconds` (then fewer repeats may have to do; one always runs).
Times time_repeats(const std::function<void(int64_t repeat)>& run, double most_seconds);

}  // namespace flashmla::cli
