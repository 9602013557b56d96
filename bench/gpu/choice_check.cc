#include "choice_check.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "decode_problem.h"

namespace flashmla::bench {

namespace {

constexpr double kMostBehind = 0.05;
constexpr double kNoise_us = 0.2;  // of two timings of one short call
constexpr const char* kKernels[] = {"hopper_r8",  "hopper_r16",   "hopper_r32",
                                    "hopper_r64", "portable_r16", "portable_r32"};

Case random_case(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int> values) { return *(values.begin() + random() % values.size()); };
  constexpr int64_t kMostKeys = 1 << 20;
  const int64_t batch = pick({1, 1, 2, 3, 4, 7, 8, 16, 24, 32, 64, 100, 128, 200});
  const int heads = pick({4, 8, 12, 16, 20, 32, 40, 64, 96, 128});
  const int tokens = pick({1, 1, 1, 2, 4});
  int64_t length = int64_t{64} << random() % 10;  // 64 to 32768
  length = std::min(length + static_cast<int64_t>(random() % static_cast<uint64_t>(length)), kMostKeys / batch);
  const bool equal = random() % 2 == 0;
  Case c{.name = "", .heads_q = heads, .lengths = {}, .seq_q = tokens};
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t less = equal ? 0 : static_cast<int64_t>(random() % static_cast<uint64_t>(length));
    c.lengths.push_back(static_cast<int32_t>(length - less));
  }
  c.name = "b" + std::to_string(batch) + " h" + std::to_string(heads) + " s" + std::to_string(tokens) +
           (equal ? " " : " up to ") + std::to_string(length);
  return c;
}

// Microseconds; negative where the kernel does not take the shape.
double time_kernel(Problem& problem, const std::string& kernel, double bytes) {
  const Context context{.device = {DeviceType::kCUDA}, .backend = "cuda", .kernel = kernel};
  if (!explain_decode(problem.shape(), {}, context).ok()) return -1;
  problem.prepare(context);
  const auto enqueue = [&](int i, cudaStream_t stream) {
    Context on_stream = context;
    on_stream.stream = stream;
    const Status status = decode(problem.params(i), problem.workspace(), on_stream);
    if (!status.ok()) throw std::runtime_error(status.text());
  };
  constexpr int kFewReplays = 5;
  return time_operations(enqueue, launch_nothing, operations_of(bytes), kFewReplays).median_us;
}

}  // namespace

bool check_choices(int count, const char* json_file) {
  std::mt19937 random(20);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  int behind = 0;
  for (int i = 0; i < count; ++i) {
    const Case c = random_case(random);
    Problem problem(c);
    double bytes = 0;
    for (int32_t length : c.lengths) bytes += length * 1152.0;
    const Context context{.device = {DeviceType::kCUDA}, .backend = "cuda"};
    const Result<KernelChoice> choice = explain_decode(problem.shape(), {}, context);
    if (!choice.ok()) throw std::runtime_error(choice.status().text());
    const std::string& chosen = choice.value().kernel;
    nlohmann::ordered_json times;
    std::string best = chosen;
    std::printf("%-28s %-13s", c.name.c_str(), chosen.c_str());
    for (const char* kernel : kKernels) {
      const double us = time_kernel(problem, kernel, bytes);
      if (us < 0) continue;
      std::printf(" %s %.2f", kernel, us);
      times[kernel] = us;
      if (!times.contains(best) || us < times[best].get<double>()) best = kernel;
    }
    const bool right = times.contains(chosen) &&
                       times[chosen].get<double>() <= times[best].get<double>() * (1 + kMostBehind) + kNoise_us;
    std::printf("%s\n", right ? "" : "  BEHIND");
    std::fflush(stdout);
    behind += right ? 0 : 1;
    rows.push_back({{"case", c.name}, {"chosen", chosen}, {"best", best}, {"right", right}, {"time_us", times}});
  }
  std::printf("%d of %d choices are within 5 %% of the best kernel\n", count - behind, count);
  if (json_file != nullptr) std::ofstream(json_file) << nlohmann::ordered_json{{"choices", rows}}.dump(1) << '\n';
  return behind == 0;
}

}  // namespace flashmla::bench
