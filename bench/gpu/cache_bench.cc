// append_kv and merge_states on the GPU: right first, then times beside a plain copy of the same run, which reads and
// writes as many bytes.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "flashmla/flashmla.h"
#include "gpu_timing.h"

namespace flashmla::bench {
namespace {

constexpr int64_t kLatent = 512;
constexpr int64_t kRope = 64;
constexpr int64_t kWidth = kLatent + kRope;
constexpr int64_t kPage = 64;

void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.text());
}

class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(bytes) {
    bench::check(cudaMalloc(&data_, static_cast<size_t>(bytes)), "memory");
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* at(int64_t offset) const { return static_cast<std::byte*>(data_) + offset; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

struct Row {
  std::string name;
  int64_t count = 0;  // tokens or rows
  int64_t bytes = 0;  // read and written by one operation
  Spread cold;        // an ordinary kernel between the operations, its time subtracted
  Spread chain;       // one right after the other
  Spread copy;        // cudaMemcpyAsync that reads and writes as many bytes
  bool right = false;
};

// Buffers that hold `copies` operations' worth, so that none of them finds its data in L2.
int copies_of(int64_t bytes) { return static_cast<int>(std::min<int64_t>(256, kRotationBytes / bytes + 2)); }

void time_row(Row& row, const std::function<void(int, cudaStream_t)>& enqueue) {
  const int operations = operations_of(row.bytes);
  row.cold = time_operations(enqueue, launch_nothing, operations, kReplays);
  row.chain = time_operations(enqueue, {}, operations, kReplays);
  const int copies = copies_of(row.bytes);
  const int64_t half = (row.bytes / 2 + 255) / 256 * 256;
  const Memory from(copies * half);
  const Memory to(copies * half);
  bench::check(cudaMemset(from.at(0), 1, static_cast<size_t>(from.bytes())), "fill");
  row.copy = time_operations(
      [&](int i, cudaStream_t stream) {
        const int64_t place = i % copies * half;
        bench::check(cudaMemcpyAsync(to.at(place), from.at(place), static_cast<size_t>(row.bytes / 2),
                                     cudaMemcpyDeviceToDevice, stream),
                     "copy");
      },
      launch_nothing, operations, kReplays);
}

// Whole pages in a random order, as prompts write them; with one token a page, as decoding does.
std::vector<int64_t> slots_of(int64_t tokens, int64_t pages, bool whole_pages, uint64_t state) {
  std::vector<int64_t> order(static_cast<size_t>(pages));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  for (size_t i = order.size(); i > 1; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[i - 1], order[(state >> 33) % i]);
  }
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    const auto at = static_cast<size_t>(t);
    slots[at] = whole_pages ? order[at / kPage] * kPage + t % kPage : order[at] * kPage + order[at] % kPage;
  }
  return slots;
}

Row bench_append(int64_t tokens, bool whole_pages) {
  Row row;
  row.name = "append_kv " + std::to_string(tokens) + (whole_pages ? ", whole pages" : ", one a page");
  row.count = tokens;
  row.bytes = 2 * tokens * kWidth * 2;
  const int copies = copies_of(row.bytes);
  const int64_t pages = std::max<int64_t>(2 * (whole_pages ? (tokens + kPage - 1) / kPage : tokens),
                                          kRotationBytes / (kPage * kWidth * 2));
  const Memory source(copies * tokens * kWidth * 2);
  const Memory pool(pages * kPage * kWidth * 2);
  const Memory slots(copies * tokens * 8);
  fill_normal(source.at(0), DType::kBFloat16, copies * tokens * kWidth, 1);
  std::vector<std::vector<int64_t>> lists;
  for (int i = 0; i < copies; ++i) {
    lists.push_back(slots_of(tokens, pages, whole_pages, static_cast<uint64_t>(i) + 7));
    bench::check(cudaMemcpy(slots.at(i * tokens * 8), lists.back().data(), static_cast<size_t>(tokens) * 8,
                            cudaMemcpyHostToDevice),
                 "slots");
  }
  // As a model has it: latent and RoPE part side by side in one projection.
  const auto params = [&](int i) {
    std::byte* rows = source.at(i % copies * tokens * kWidth * 2);
    AppendKvParams p;
    p.latent = {rows, DType::kBFloat16, 2, {tokens, kLatent}, {kWidth, 1}};
    p.rope = {rows + kLatent * 2, DType::kBFloat16, 2, {tokens, kRope}, {kWidth, 1}};
    p.slot_mapping = ConstTensorView::contiguous(slots.at(i % copies * tokens * 8), DType::kInt64, {tokens});
    p.kv_cache = TensorView::contiguous(pool.at(0), DType::kBFloat16, {pages, kPage, kWidth});
    return p;
  };
  const auto enqueue = [&](int i, cudaStream_t stream) {
    check(append_kv(params(i), {.device = {DeviceType::kCUDA}, .stream = stream, .backend = "cuda"}));
  };
  bench::check(cudaMemset(pool.at(0), 0xff, static_cast<size_t>(pool.bytes())), "poison");
  enqueue(0, nullptr);
  bench::check(cudaDeviceSynchronize(), "append_kv");
  std::vector<uint16_t> want(static_cast<size_t>(tokens * kWidth));
  bench::check(cudaMemcpy(want.data(), source.at(0), want.size() * 2, cudaMemcpyDeviceToHost), "copy");
  std::vector<uint16_t> got(static_cast<size_t>(pages * kPage * kWidth));
  bench::check(cudaMemcpy(got.data(), pool.at(0), got.size() * 2, cudaMemcpyDeviceToHost), "copy");
  row.right = true;
  for (int64_t t = 0; t < tokens; ++t) {
    row.right = row.right && std::memcmp(&got[static_cast<size_t>(lists[0][static_cast<size_t>(t)] * kWidth)],
                                         &want[static_cast<size_t>(t * kWidth)], kWidth * 2) == 0;
  }
  time_row(row, enqueue);
  return row;
}

Row bench_merge(int64_t tokens, int64_t heads, int64_t width) {
  Row row;
  row.name = "merge_states " + std::to_string(tokens) + " x " + std::to_string(heads) + " x " + std::to_string(width);
  row.count = tokens * heads;
  const int64_t out_bytes = tokens * heads * width * 2;
  const int64_t lse_bytes = tokens * heads * 4;
  row.bytes = 3 * (out_bytes + lse_bytes);
  const int copies = copies_of(row.bytes);
  const Memory out(3 * copies * out_bytes);
  const Memory lse(3 * copies * lse_bytes);
  fill_normal(out.at(0), DType::kBFloat16, 3 * copies * tokens * heads * width, 2);
  std::vector<float> sums(static_cast<size_t>(3 * copies * tokens * heads));
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<float>(i % 13) * 0.25f;
  bench::check(cudaMemcpy(lse.at(0), sums.data(), sums.size() * 4, cudaMemcpyHostToDevice), "lse");
  const auto out_view = [&](int place) {
    return TensorView::contiguous(out.at(place * out_bytes), DType::kBFloat16, {tokens, heads, width});
  };
  const auto lse_view = [&](int place) {
    return TensorView::contiguous(lse.at(place * lse_bytes), DType::kFloat32, {heads, tokens});
  };
  const auto enqueue = [&](int i, cudaStream_t stream) {
    const int first = 3 * (i % copies);
    MergeStatesParams p;
    p.out_a = out_view(first);
    p.lse_a = lse_view(first);
    p.out_b = out_view(first + 1);
    p.lse_b = lse_view(first + 1);
    p.out = out_view(first + 2);
    p.lse = lse_view(first + 2);
    check(merge_states(p, {.device = {DeviceType::kCUDA}, .stream = stream, .backend = "cuda"}));
  };
  bench::check(cudaMemset(out.at(2 * out_bytes), 0xff, static_cast<size_t>(out_bytes)), "poison");
  enqueue(0, nullptr);
  bench::check(cudaDeviceSynchronize(), "merge_states");
  std::vector<uint16_t> all(static_cast<size_t>(3 * tokens * heads * width));
  bench::check(cudaMemcpy(all.data(), out.at(0), all.size() * 2, cudaMemcpyDeviceToHost), "copy");
  const auto value = [&](int64_t part, int64_t row_index, int64_t d) {
    const uint32_t bits =
        static_cast<uint32_t>(all[static_cast<size_t>((part * tokens * heads + row_index) * width + d)]) << 16;
    float x = 0;
    std::memcpy(&x, &bits, 4);
    return static_cast<double>(x);
  };
  row.right = true;
  for (int64_t r = 0; r < tokens * heads; r += 97) {
    const auto at = static_cast<size_t>(r % heads * tokens + r / heads);
    const double weight =
        1 / (1 + std::exp(static_cast<double>(sums[at + static_cast<size_t>(tokens * heads)] - sums[at])));
    for (int64_t d = 0; d < width; ++d) {
      const double want = weight * value(0, r, d) + (1 - weight) * value(1, r, d);
      row.right = row.right && std::fabs(value(2, r, d) - want) <= 0x1p-8 * std::fabs(want) + 1e-5;
    }
  }
  time_row(row, enqueue);
  return row;
}

int run(int argc, char** argv) {
  const char* json_file = nullptr;
  const char* only = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--json") == 0) json_file = argv[i + 1];
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
  }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::printf("%-34s %9s %9s %9s %9s %9s %8s\n", "operation", "cold us", "chain us", "copy us", "GB/s", "copy GB/s",
              "of copy");
  bool right = true;
  const auto add = [&](const char* name, const std::function<Row()>& bench) {
    if (only != nullptr && std::strstr(name, only) == nullptr) return;
    const Row row = bench();
    right = right && row.right;
    const double gbps = static_cast<double>(row.bytes) / row.cold.median_us * 1e-3;
    const double copy_gbps = static_cast<double>(row.bytes) / row.copy.median_us * 1e-3;
    std::printf("%-34s %9.2f %9.2f %9.2f %9.0f %9.0f %7.1f%%%s\n", row.name.c_str(), row.cold.median_us,
                row.chain.median_us, row.copy.median_us, gbps, copy_gbps, 100 * gbps / copy_gbps,
                row.right ? "" : " WRONG");
    std::fflush(stdout);
    rows.push_back({{"library", "flashmla"},
                    {"backend", "cuda"},
                    {"operation", name},
                    {"case", row.name},
                    {"count", row.count},
                    {"dtype", "bf16"},
                    {"bytes", row.bytes},
                    {"time_us", row.cold.median_us},
                    {"time_us_low", row.cold.low_us},
                    {"time_us_high", row.cold.high_us},
                    {"chain_us", row.chain.median_us},
                    {"copy_us", row.copy.median_us},
                    {"gbps", gbps},
                    {"copy_gbps", copy_gbps},
                    {"right", row.right}});
  };
  for (int64_t tokens : {1, 128, 8192, 65536}) add("append_kv", [&] { return bench_append(tokens, tokens > 128); });
  add("append_kv", [&] { return bench_append(8192, false); });
  add("merge_states", [&] { return bench_merge(128, 16, 512); });
  add("merge_states", [&] { return bench_merge(4096, 16, 512); });
  add("merge_states", [&] { return bench_merge(16384, 16, 512); });
  add("merge_states", [&] { return bench_merge(4096, 128, 128); });
  if (json_file != nullptr) {
    std::ofstream(json_file) << nlohmann::ordered_json{{"rows", rows}}.dump(1) << '\n';
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace flashmla::bench

int main(int argc, char** argv) { return flashmla::bench::guarded_main(flashmla::bench::run, argc, argv); }
