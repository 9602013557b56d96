// Decode on the GPU: correctness against the device oracle first, then times. See docs/benchmarking.md.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "choice_check.h"
#include "decode_problem.h"

namespace flashmla::bench {
namespace {

std::vector<int32_t> equal(int64_t batch, int32_t length) {
  return std::vector<int32_t>(static_cast<size_t>(batch), length);
}

// Lengths of a normal distribution, at least 1.
std::vector<int32_t> normal(int64_t batch, double mean, double deviation) {
  std::mt19937 random(11);
  std::normal_distribution<double> distribution(mean, deviation);
  std::vector<int32_t> lengths;
  while (static_cast<int64_t>(lengths.size()) < batch)
    lengths.push_back(static_cast<int32_t>(std::max(1.0, distribution(random))));
  return lengths;
}

std::vector<int32_t> between(int64_t batch, int32_t least, int32_t most) {
  std::mt19937 random(12);
  std::vector<int32_t> lengths;
  while (static_cast<int64_t>(lengths.size()) < batch)
    lengths.push_back(least + static_cast<int32_t>(random() % static_cast<uint32_t>(most - least + 1)));
  return lengths;
}

std::vector<int32_t> climbing(int64_t batch, int32_t first) {
  std::vector<int32_t> lengths;
  while (static_cast<int64_t>(lengths.size()) < batch)
    lengths.push_back(first + 2 * static_cast<int32_t>(lengths.size()));
  return lengths;
}

// Aims and best peers: docs/kernels/decode.md.
std::vector<Case> cases() {
  std::vector<int32_t> skewed = equal(32, 1024);
  skewed[0] = 131072;
  return {
      {"b1 h16 512", 16, equal(1, 512), 4.9, 9.3},
      {"b1 h16 4096", 16, equal(1, 4096), 6.2, 15.7},
      {"b1 h16 32768", 16, equal(1, 32768), 14.5, 28.2},
      {"b1 h16 131072", 16, equal(1, 131072), 41, 57.9},
      {"b1 h128 512", 128, equal(1, 512), 6, 11.5},
      {"b1 h128 4096", 128, equal(1, 4096), 9, 18.4},
      {"b1 h128 32768", 128, equal(1, 32768), 22, 39.7},
      {"b1 h128 131072", 128, equal(1, 131072), 63, 77.9},
      {"b4 h16 8192", 16, equal(4, 8192), 14.5, 22.7},
      {"b16 h16 4096", 16, equal(16, 4096), 24, 29.2},
      {"b32 h16 4096", 16, equal(32, 4096), 41.5, 46.0},
      {"b32 h8 4096", 8, equal(32, 4096), 39.5, 45.5},
      {"b4 h128 8192", 128, equal(4, 8192), 21, 29.3},
      {"b16 h128 4096", 128, equal(16, 4096), 33.5, 43.8},
      {"b64 h128 4096", 128, equal(64, 4096), 110, 112},
      {"b128 h16 1024", 16, equal(128, 1024), 39.5, 43.1},
      {"b128 h16 4096", 16, equal(128, 4096), 139, 143},
      {"b128 h16 16384", 16, equal(128, 16384), 541, 549},
      {"b256 h16 1024", 16, equal(256, 1024), 74, 80.5},
      {"b128 h32 4096", 32, equal(128, 4096), 142, 145},
      {"b128 h32 16384", 32, equal(128, 16384), 545, 553},
      {"b128 h64 1024", 64, equal(128, 1024), 42.5, 44.6},
      {"b128 h64 4096", 64, equal(128, 4096), 142, 145},
      {"b128 h64 16384", 64, equal(128, 16384), 552, 561},
      {"b128 h16 s2 4096", 16, equal(128, 4096), 141, 145, 2},
      {"b128 h16 s4 4096", 16, equal(128, 4096), 143, 146, 4},
      {"b128 h16 2k-6k", 16, between(128, 2048, 6143), 147, 0},
      {"b128 h128 1024", 128, equal(128, 1024), 61, 66.8},
      {"b128 h128 n4096", 128, normal(128, 4096, 2048), 232, 251},
      {"b128 h128 n16384", 128, normal(128, 16384, 8192), 858, 880},
      {"b128 h128 t1k", 128, climbing(128, 1024), 63, 67},
      {"b128 h128 t4k", 128, climbing(128, 4096), 225, 242},
      {"b128 h128 t16k", 128, climbing(128, 16384), 855, 885},
      {"b32 h16 skewed", 16, skewed, 50, 66.4},
      {"b32 h128 skewed", 128, skewed, 78, 90.9},
  };
}

constexpr const char* kUsage =
    R"(usage: flashmla_gpu_bench [--json FILE] [--only NAME-PART] [--kernel NAME] [--cool] [--fp16] [--page TOKENS]
                          [--choices COUNT] [--commit SHA] [--sources HASH]
--cool: leaves out the column of the hot chip (one second of load before each long case of 64 rows and more)
--page: tokens of a page; 0: a page for each request's whole sequence
--choices: times every kernel on COUNT random shapes and fails where the library's choice is not the best one
)";

int run(int argc, char** argv) {
  const char* json_file = nullptr;
  const char* only = nullptr;
  bool cool = false;
  int choices = 0;
  CacheForm form;
  std::string kernel, commit, sources;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc)
      json_file = argv[++i];
    else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc)
      only = argv[++i];
    else if (std::strcmp(argv[i], "--kernel") == 0 && i + 1 < argc)
      kernel = argv[++i];
    else if (std::strcmp(argv[i], "--commit") == 0 && i + 1 < argc)
      commit = argv[++i];
    else if (std::strcmp(argv[i], "--sources") == 0 && i + 1 < argc)
      sources = argv[++i];
    else if (std::strcmp(argv[i], "--cool") == 0)
      cool = true;
    else if (std::strcmp(argv[i], "--fp16") == 0)
      form.dtype = DType::kFloat16;
    else if (std::strcmp(argv[i], "--page") == 0 && i + 1 < argc)
      form.page = std::atoll(argv[++i]);
    else if (std::strcmp(argv[i], "--choices") == 0 && i + 1 < argc)
      choices = std::atoi(argv[++i]);
    else {
      std::fputs(kUsage, stderr);
      return 2;
    }
  }
  if (choices > 0) return check_choices(choices, json_file) ? 0 : 1;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const double read = read_bandwidth(int64_t{4} << 30);
  std::printf("read bandwidth %.0f GB/s\n%-16s %-18s %9s %9s %9s %9s %9s %8s %8s %8s %8s %9s\n", read / 1e9, "case",
              "kernel", "cold us", "chain us", "warm us", "hot us", "spread", "target", "peer", "GB/s", "host us",
              "error");
  bool right = true;
  for (const Case& c : cases()) {
    if (only != nullptr && std::strstr(c.name.c_str(), only) == nullptr) continue;
    Problem problem(c, form);
    Context context{.device = {DeviceType::kCUDA}, .backend = "cuda", .kernel = kernel};
    problem.prepare(context);
    const Result<KernelChoice> choice = explain_decode(problem.shape(), {}, context);
    const auto [error, lse_error] = problem.error(context);
    const bool ok = error < 4e-3 && lse_error < 1e-4;
    right = right && ok;
    const auto enqueue = [&](int i, cudaStream_t stream) {
      Context on_stream = context;
      on_stream.stream = stream;
      const Status status = decode(problem.params(i), problem.workspace(), on_stream);
      if (!status.ok()) throw std::runtime_error(status.text());
    };
    double bytes = 0;
    for (int32_t length : c.lengths) bytes += length * 1152.0;
    const int operations = operations_of(bytes);
    const Spread cold = time_operations(enqueue, launch_nothing, operations, kReplays);
    const Spread chain = time_operations(enqueue, {}, operations, kReplays);
    const Spread warm =
        time_operations([&](int, cudaStream_t stream) { enqueue(0, stream); }, launch_nothing, operations, kReplays);
    // Power slows long products down, and short calls or few rows not at all.
    const bool heats = !cool && c.heads_q * c.seq_q >= 64 && cold.median_us >= 100;
    const Spread hot =
        heats ? time_operations(enqueue, launch_nothing, operations, kReplays, /*load_ms=*/1000) : Spread{};
    const double host = host_us(enqueue, 50);
    std::printf("%-16s %-18s %9.2f %9.2f %9.2f %9.2f %8.1f%% %8.1f %8.1f %8.0f %8.2f %9.1e%s\n", c.name.c_str(),
                choice.value().kernel.c_str(), cold.median_us, chain.median_us, warm.median_us, hot.median_us,
                100 * (cold.high_us - cold.low_us) / cold.median_us, c.target_us, c.peer_us,
                bytes / cold.median_us * 1e-3, host, error, ok ? "" : " WRONG");
    std::fflush(stdout);
    rows.push_back({{"library", "flashmla"},
                    {"backend", "cuda"},
                    {"kernel", choice.value().kernel},
                    {"case", c.name},
                    {"batch", c.lengths.size()},
                    {"seq_q", c.seq_q},
                    {"heads_q", c.heads_q},
                    {"seq_k", c.lengths.back()},
                    {"page_size", problem.page_size()},
                    {"dtype", std::string(dtype_name(form.dtype))},
                    {"time_us", cold.median_us},
                    {"time_us_low", cold.low_us},
                    {"time_us_high", cold.high_us},
                    {"chain_us", chain.median_us},
                    {"l2_warm_us", warm.median_us},
                    {"chip_hot_us", heats ? nlohmann::ordered_json(hot.median_us) : nlohmann::ordered_json()},
                    {"host_us", host},
                    {"gbps", bytes / cold.median_us * 1e-3},
                    {"workspace_bytes", problem.workspace_size()},
                    {"relative_error", error},
                    {"lse_error", lse_error},
                    {"target_us", c.target_us},
                    {"peer_us", c.peer_us}});
  }
  if (json_file != nullptr) {
    cudaDeviceProp device;
    check(cudaGetDeviceProperties(&device, 0), "device");
    int driver = 0;
    check(cudaDriverGetVersion(&driver), "driver");
    nlohmann::ordered_json document{
        {"commit", commit},
        {"sources", sources},
        {"device", device.name},
        {"multiprocessors", device.multiProcessorCount},
        {"cuda_driver", driver},
        {"method",
         "graphs of calls, median of 11 replays after 15 ms of rest each; keys rotate over 300 MB or more (L2 "
         "cold), the chip is cool; time_us: an ordinary kernel between the calls, its time subtracted; "
         "chain_us: calls back to back; l2_warm_us: as time_us, the same keys each time; chip_hot_us: as time_us, "
         "after "
         "one second of load; host_us: enqueueing one call from C++"},
        {"read_gbps", read / 1e9},
        {"rows", rows}};
    std::ofstream(json_file) << document.dump(1) << '\n';
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace flashmla::bench

int main(int argc, char** argv) { return flashmla::bench::guarded_main(flashmla::bench::run, argc, argv); }
