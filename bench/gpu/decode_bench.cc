// Decode on the GPU: correctness against the device oracle first, then times. See docs/benchmarking.md.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases/naive_decode.h"
#include "core/float16.h"
#include "flashmla/flashmla.h"
#include "gpu_timing.h"

namespace flashmla::bench {
namespace {

struct Case {
  const char* name;
  int64_t heads_q;
  std::vector<int32_t> lengths;
  double target_us;
  double peer_us;  // best peer on an H200, docs/kernels/decode.md
  int64_t seq_q = 1;
};

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

// Device tensors of a case: several page tables over one pool, so that the keys of a call are not in L2.
class Problem {
 public:
  explicit Problem(const Case& c) : case_(c) {
    const auto batch = static_cast<int64_t>(c.lengths.size());
    int64_t pages = 0;
    for (int32_t length : c.lengths) {
      width_ = std::max<int64_t>(width_, (length + kPage - 1) / kPage);
      pages += (length + kPage - 1) / kPage;
    }
    copies_ = static_cast<int>(std::min<int64_t>(64, kRotationBytes / (pages * kPage * kWidth * 2) + 2));
    pool_ = allocate(copies_ * pages * kPage * kWidth * 2);
    fill_normal_bf16(pool_, copies_ * pages * kPage * kWidth, 1);
    q_ = allocate(batch * c.seq_q * c.heads_q * kWidth * 2);
    fill_normal_bf16(q_, batch * c.seq_q * c.heads_q * kWidth, 2);
    out_bytes_ = batch * c.seq_q * c.heads_q * kLatent * 2;
    out_ = allocate(out_bytes_);
    lse_ = allocate(batch * c.seq_q * c.heads_q * 4);
    lens_ = upload(c.lengths);
    std::vector<int32_t> order(static_cast<size_t>(copies_ * pages));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    uint64_t state = 7;
    for (size_t i = order.size(); i > 1; --i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i - 1], order[(state >> 33) % i]);
    }
    size_t next = 0;
    for (int copy = 0; copy < copies_; ++copy) {
      std::vector<int32_t> table(static_cast<size_t>(batch * width_), -1);
      for (int64_t i = 0; i < batch; ++i) {
        for (int64_t p = 0; p < (c.lengths[i] + kPage - 1) / kPage; ++p) table[i * width_ + p] = order[next++];
      }
      tables_.push_back(upload(table));
    }
    pages_ = copies_ * pages;
    const Result<DecodeShape> shape = decode_shape(params(0));
    if (!shape.ok()) throw std::runtime_error(shape.status().text());
    shape_ = shape.value();
  }
  ~Problem() {
    for (void* memory : memory_) cudaFree(memory);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  void prepare(const Context& context) {
    const Result<int64_t> bytes = workspace_bytes(shape_, {}, context);
    if (!bytes.ok()) throw std::runtime_error(bytes.status().text());
    workspace_ = {allocate(bytes.value()), bytes.value()};
    check(cudaMemset(workspace_.data, 0xff, static_cast<size_t>(bytes.value())), "poison");
  }

  DecodeParams params(int copy) const {
    const auto batch = static_cast<int64_t>(case_.lengths.size());
    DecodeParams p;
    p.q = ConstTensorView::contiguous(q_, DType::kBFloat16, {batch, case_.seq_q, case_.heads_q, kWidth});
    p.kv_cache = ConstTensorView::contiguous(pool_, DType::kBFloat16, {pages_, kPage, 1, kWidth});
    p.page_table =
        ConstTensorView::contiguous(tables_[static_cast<size_t>(copy % copies_)], DType::kInt32, {batch, width_});
    p.seq_lens = ConstTensorView::contiguous(lens_, DType::kInt32, {batch});
    p.out = TensorView::contiguous(out_, DType::kBFloat16, {batch, case_.seq_q, case_.heads_q, kLatent});
    p.lse = TensorView::contiguous(lse_, DType::kFloat32, {batch, case_.heads_q, case_.seq_q});
    p.causal = case_.seq_q > 1;
    p.softmax_scale = 0.0416667f;  // 576^-0.5
    return p;
  }
  const DecodeShape& shape() const { return shape_; }
  Workspace workspace() const { return workspace_; }
  int64_t workspace_size() const { return workspace_.bytes; }

  // ||out - oracle|| / ||oracle||, and the largest error of lse; NaN never passes.
  std::pair<double, double> error(const Context& context) {
    check(cudaMemset(out_, 0xff, static_cast<size_t>(out_bytes_)), "poison");
    const Status status = decode(params(0), workspace_, context);
    if (!status.ok()) throw std::runtime_error(status.text());
    check(cudaDeviceSynchronize(), "decode");
    const int64_t rows = shape_.total_q * shape_.heads_q;
    auto* want = static_cast<double*>(allocate(rows * kLatent * 8));
    auto* want_lse = static_cast<double*>(allocate(rows * 8));
    const Status naive = cases::naive_decode(params(0), want, want_lse);
    if (!naive.ok()) throw std::runtime_error(naive.text());
    const auto got = download<uint16_t>(out_, rows * kLatent);
    const auto reference = download<double>(want, rows * kLatent);
    const auto lse = download<float>(lse_, rows);
    const auto lse_reference = download<double>(want_lse, rows);
    double difference = 0, size = 0, lse_error = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = static_cast<double>(to_float(BFloat16{got[i]})) - reference[i];
      difference += error * error;
      size += reference[i] * reference[i];
    }
    for (int64_t row = 0; row < rows; ++row) {  // lse is [b, h, s_q], the oracle's [b, s_q, h]
      const int64_t head = row % case_.heads_q, token = row / case_.heads_q;
      const int64_t at = (token / case_.seq_q * case_.heads_q + head) * case_.seq_q + token % case_.seq_q;
      lse_error =
          std::max(lse_error, std::fabs(lse[static_cast<size_t>(at)] - lse_reference[static_cast<size_t>(row)]));
      if (std::isnan(lse[static_cast<size_t>(at)])) lse_error = NAN;
    }
    return {std::sqrt(difference / size), lse_error};
  }

 private:
  static constexpr int64_t kPage = 64, kLatent = 512, kWidth = 576;

  void* allocate(int64_t bytes) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))), "device memory");
    memory_.push_back(memory);
    return memory;
  }
  void* upload(const std::vector<int32_t>& values) {
    void* memory = allocate(static_cast<int64_t>(values.size() * 4));
    check(cudaMemcpy(memory, values.data(), values.size() * 4, cudaMemcpyHostToDevice), "copy");
    return memory;
  }
  template <class T>
  static std::vector<T> download(const void* memory, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    check(cudaMemcpy(values.data(), memory, values.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return values;
  }

  const Case& case_;
  std::vector<void*> memory_;
  std::vector<void*> tables_;
  void *pool_ = nullptr, *q_ = nullptr, *out_ = nullptr, *lse_ = nullptr, *lens_ = nullptr;
  int64_t out_bytes_ = 0, width_ = 0, pages_ = 0;
  int copies_ = 1;
  DecodeShape shape_;
  Workspace workspace_;
};

int run(int argc, char** argv) {
  const char* json_file = nullptr;
  const char* only = nullptr;
  bool cool = false;
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
    else {
      std::fprintf(stderr,
                   "usage: flashmla_gpu_bench [--json FILE] [--only NAME-PART] [--kernel NAME] [--cool] [--commit SHA] "
                   "[--sources HASH]\n--cool: leaves out the column of the hot chip (one second of load before each "
                   "long case of 64 rows and more)\n");
      return 2;
    }
  }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const double read = read_bandwidth(int64_t{4} << 30);
  std::printf("read bandwidth %.0f GB/s\n%-16s %-18s %9s %9s %9s %9s %9s %8s %8s %8s %8s %9s\n", read / 1e9, "case",
              "kernel", "cold us", "chain us", "warm us", "hot us", "spread", "target", "peer", "GB/s", "host us",
              "error");
  bool right = true;
  for (const Case& c : cases()) {
    if (only != nullptr && std::strstr(c.name, only) == nullptr) continue;
    Problem problem(c);
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
    std::printf("%-16s %-18s %9.2f %9.2f %9.2f %9.2f %8.1f%% %8.1f %8.1f %8.0f %8.2f %9.1e%s\n", c.name,
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
                    {"page_size", 64},
                    {"dtype", "bf16"},
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
