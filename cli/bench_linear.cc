// flashmla bench linear: products with weight matrices, the inner loop of text generation on the CPU, against reading
// the weights once and against the multiply-adds.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "ceiling_loops.h"
#include "ceilings.h"
#include "commands.h"
#include "exit_code.h"
#include "flags.h"
#include "flashmla/cpu.h"
#include "run_header.h"
#include "runner/linear/linear_kernel.h"
#include "runner/linear/matrix.h"
#include "table.h"
#include "timing.h"

namespace flashmla::cli {

namespace {

using runner::LinearKernel;
using runner::Matrix;
using runner::WeightType;
using Clock = std::chrono::steady_clock;

constexpr const char* kExamples =
    R"(y = W x for each number of tokens, fp32 activations. Sampled rows are first compared with double. Each product is
timed in turn with a loop that only reads as many bytes as W has, on the same threads: its rate is the memory ceiling
of that row, since a shared machine's bandwidth changes within seconds. Copies of W together exceed the last-level
cache four times.

Examples:
  flashmla bench linear
  flashmla bench linear --rows 1408 --cols 2048 --type int8 --tokens 1,2,4,8
  flashmla bench linear --isa avx2 --threads 1 --json linear.json

Exit codes: 0 right, 1 wrong result (not timed), 2 bad usage.)";

struct LinearFlags {
  int64_t rows = 0;
  int64_t cols = 0;
  std::string type;
  std::vector<int64_t> tokens{1, 2, 4, 8, 16, 64, 256};
  std::string isa;
  int64_t threads = 0;
  double seconds = 1;
  std::string json_file;
  std::string commit;
};

struct LinearRow {
  int64_t rows = 0, cols = 0, tokens = 0, copies = 0;
  WeightType type = WeightType::kF32;
  bool right = false;
  double error = 0;  // largest of the sampled rows, relative to the sum of |w x|
  Times times;
  double read_gbps = 0;  // of the reading loop, median
  double peak_gflops = 0;

  double weight_bytes() const { return static_cast<double>(rows * cols * runner::element_bytes(type)); }
  double flops() const { return 2.0 * static_cast<double>(rows * cols * tokens); }
  double gbps() const { return weight_bytes() / times.median_us * 1e-3; }
  double gflops() const { return flops() / times.median_us * 1e-3; }
  double share_of_bound() const {
    return std::max(weight_bytes() / read_gbps, flops() / peak_gflops) * 1e-3 / times.median_us;
  }
};

// Random weights of magnitude 2^-7 .. 2^-6, or any int8.
Matrix random_matrix(int64_t rows, int64_t cols, WeightType type, uint64_t seed) {
  const int64_t bytes = rows * cols * runner::element_bytes(type);
  const int64_t scale_offset = (bytes + 63) / 64 * 64;
  const auto memory = runner::allocate_weights(scale_offset + rows * static_cast<int64_t>(sizeof(float)));
  auto* data = static_cast<std::byte*>(memory.get());
  uint64_t keep = ~uint64_t{0};
  uint64_t set = 0;
  switch (type) {
    case WeightType::kF32: keep = 0x807fffff807fffff, set = 0x3c0000003c000000; break;
    case WeightType::kBF16: keep = 0x807f807f807f807f, set = 0x3c003c003c003c00; break;
    case WeightType::kF16: keep = 0x83ff83ff83ff83ff, set = 0x2000200020002000; break;
    case WeightType::kInt8: break;
  }
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < scale_offset; i += 8) {
    const uint64_t word = (random() & keep) | set;
    std::memcpy(data + i, &word, 8);
  }
  auto* scales = reinterpret_cast<float*>(data + scale_offset);
  std::fill_n(scales, rows, 1e-3F);
  return {.rows = rows,
          .cols = cols,
          .type = type,
          .data = data,
          .row_scale = type == WeightType::kInt8 ? scales : nullptr,
          .owner = memory};
}

// The largest error of 16 rows and up to 4 tokens, relative to the sum of |w x|.
double sampled_error(const Matrix& w, const std::vector<float>& x, const std::vector<float>& y, int64_t tokens) {
  double worst = 0;
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t r = i == 15 ? w.rows - 1 : i * w.rows / 16;
    runner::read_row(w, r, row.data());
    for (int64_t t = 0; t < tokens; t += std::max<int64_t>(1, tokens / 4)) {
      double sum = 0;
      double terms = 0;
      for (int64_t c = 0; c < w.cols; ++c) {
        const double term = static_cast<double>(row[static_cast<size_t>(c)]) *
                            static_cast<double>(x[static_cast<size_t>(t * w.cols + c)]);
        sum += term;
        terms += std::fabs(term);
      }
      const double error = std::fabs(static_cast<double>(y[static_cast<size_t>(t * w.rows + r)]) - sum) / terms;
      if (!(error <= worst)) worst = error;  // a NaN too
    }
  }
  return worst;
}

// Reads `bytes` of a large buffer on `threads` threads, going on where the call before stopped.
class Reader {
 public:
  explicit Reader(int32_t threads)
      : loop_(read_loop(cpu_info().isas)),
        threads_(threads),
        size_(std::max(int64_t{256} << 20, 4 * cpu_info().l3_bytes) / kUnit * kUnit),
        buffer_(runner::allocate_weights(size_)) {
    std::memset(buffer_.get(), 1, static_cast<size_t>(size_));
  }
  // The bytes really read.
  double read(double bytes) {
    const int64_t share = std::min(static_cast<int64_t>(bytes) / threads_, size_ / threads_) / kUnit * kUnit + kUnit;
    if (place_ + share * threads_ > size_) place_ = 0;
    const int64_t each = std::min(share, size_ / threads_ / kUnit * kUnit);
    run_workers(threads_, [&](int32_t worker) {
      loop_.run(static_cast<const std::byte*>(buffer_.get()) + place_ + worker * each, each);
    });
    place_ += each * threads_;
    return static_cast<double>(each * threads_);
  }

 private:
  static constexpr int64_t kUnit = 4096;
  const ReadLoop& loop_;
  int32_t threads_;
  int64_t size_;
  int64_t place_ = 0;
  std::shared_ptr<void> buffer_;
};

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

class LinearBench {
 public:
  LinearBench(const LinearFlags& flags, const LinearKernel& kernel)
      : flags_(flags),
        kernel_(kernel),
        threads_(static_cast<int32_t>(flags.threads > 0 ? flags.threads : std::max(cpu_info().threads, 1))),
        reader_(threads_) {}

  int32_t threads() const { return threads_; }

  std::vector<LinearRow> run(int64_t rows, int64_t cols, WeightType type) {
    LinearRow row;
    row.rows = rows;
    row.cols = cols;
    row.type = type;
    const int64_t l3 = cpu_info().l3_bytes > 0 ? cpu_info().l3_bytes : int64_t{64} << 20;
    row.copies = std::clamp<int64_t>(static_cast<int64_t>(4.0 * static_cast<double>(l3) / row.weight_bytes()), 2, 512);
    std::vector<Matrix> copies;
    for (int64_t i = 0; i < row.copies; ++i) {
      copies.push_back(random_matrix(rows, cols, type, static_cast<uint64_t>(i + 1)));
    }
    std::vector<LinearRow> list;
    for (const int64_t tokens : flags_.tokens) {
      row.tokens = tokens;
      time_row(copies, row);
      list.push_back(row);
    }
    return list;
  }

 private:
  void time_row(const std::vector<Matrix>& copies, LinearRow& row) {
    std::vector<float> x(static_cast<size_t>(row.tokens * row.cols));
    std::vector<float> y(static_cast<size_t>(row.tokens * row.rows));
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(random);
    const auto multiply = [&](const Matrix& w) {
      const runner::Product product = {&w, x.data(), row.cols, row.tokens, y.data(), row.rows};
      runner::multiply_all_with(kernel_, &product, 1, threads_);
    };
    multiply(copies.front());
    row.error = sampled_error(copies.front(), x, y, row.tokens);
    row.right = row.error <= 1.0 / 256;
    if (!row.right) return;
    std::vector<double> times;
    std::vector<double> read_gbps;
    const Clock::time_point start = Clock::now();
    while (times.empty() || microseconds_since(start) < flags_.seconds * 1e6) {
      const Matrix& w = copies[times.size() % copies.size()];
      Clock::time_point before = Clock::now();
      multiply(w);
      times.push_back(microseconds_since(before));
      before = Clock::now();
      const double bytes = reader_.read(row.weight_bytes());
      read_gbps.push_back(bytes / microseconds_since(before) * 1e-3);
    }
    row.times = summarise(std::move(times));
    std::ranges::sort(read_gbps);
    row.read_gbps = read_gbps[read_gbps.size() / 2];
  }

  const LinearFlags& flags_;
  const LinearKernel& kernel_;
  int32_t threads_;
  Reader reader_;
};

Json row_json(const LinearRow& row, const char* isa) {
  Json json;
  json["isa"] = isa;
  json["rows"] = row.rows;
  json["cols"] = row.cols;
  json["type"] = runner::weight_type_name(row.type);
  json["tokens"] = row.tokens;
  json["right"] = row.right;
  json["error"] = row.error;
  json["copies"] = row.copies;
  if (!row.right) return json;
  json["time_us"] = row.times.median_us;
  json["time_us_p10"] = row.times.p10_us;
  json["time_us_p90"] = row.times.p90_us;
  json["repeats"] = row.times.repeats;
  json["gbps"] = row.gbps();
  json["read_gbps"] = row.read_gbps;
  json["gflops"] = row.gflops();
  json["peak_gflops"] = row.peak_gflops;
  json["share_of_bound"] = row.share_of_bound();
  return json;
}

std::string rows_text(const std::vector<LinearRow>& rows) {
  Table table({{"rows x cols", Align::kLeft},
               {"type", Align::kLeft},
               {"tokens"},
               {"time"},
               {"p10 .. p90"},
               {"repeats"},
               {"GB/s"},
               {"read GB/s"},
               {"GFLOP/s"},
               {"of peak"},
               {"of bound"}});
  for (const LinearRow& row : rows) {
    std::vector<std::string> cells = {fmt::format("{} x {}", row.rows, row.cols), runner::weight_type_name(row.type),
                                      std::to_string(row.tokens)};
    if (row.right) {
      cells.insert(cells.end(), {time_text(row.times.median_us),
                                 fmt::format("{} .. {}", time_text(row.times.p10_us), time_text(row.times.p90_us)),
                                 std::to_string(row.times.repeats), fmt::format("{:.1f}", row.gbps()),
                                 fmt::format("{:.1f}", row.read_gbps), fmt::format("{:.1f}", row.gflops()),
                                 fmt::format("{:.0f} %", 100 * row.gflops() / row.peak_gflops),
                                 fmt::format("{:.0f} %", 100 * row.share_of_bound())});
    } else {
      cells.insert(cells.end(), {fmt::format("WRONG ({:.2g})", row.error), "", "", "", "", "", "", ""});
    }
    table.add(std::move(cells));
  }
  return table.text();
}

const LinearKernel& kernel_of(const std::string& isa) {
  if (isa.empty()) return runner::default_linear_kernel();
  const LinearKernel* kernel = runner::find_linear_kernel(isa);
  if (kernel == nullptr) {
    std::string names;
    for (const std::string& name : cpu_info().isas) names += (names.empty() ? "" : ", ") + name;
    throw UsageError(fmt::format("--isa: got '{}'; want one that this processor has: {}", isa, names));
  }
  return *kernel;
}

int run_linear(const LinearFlags& flags) {
  check_file("--json", flags.json_file);
  if ((flags.rows > 0) != (flags.cols > 0)) throw UsageError("--rows and --cols: got one of the two; want both");
  struct Shape {
    int64_t rows, cols;
  };
  std::vector<Shape> shapes = {{2048, 2048}, {10944, 2048}, {2048, 10944}, {102400, 2048}};
  if (flags.rows > 0) shapes = {{flags.rows, flags.cols}};
  std::vector<WeightType> types;
  for (const WeightType type : {WeightType::kBF16, WeightType::kInt8, WeightType::kF16, WeightType::kF32}) {
    const bool by_default = type == WeightType::kBF16 || type == WeightType::kInt8;
    if (flags.type.empty() ? by_default : flags.type == runner::weight_type_name(type)) types.push_back(type);
  }
  const LinearKernel& kernel = kernel_of(flags.isa);
  LinearBench bench(flags, kernel);
  MeasuredCeilings ceilings = measure_ceilings(DType::kBFloat16, bench.threads());
  std::vector<LinearRow> rows;
  for (const Shape& shape : shapes) {
    for (const WeightType type : types) {
      const std::vector<LinearRow> more = bench.run(shape.rows, shape.cols, type);
      rows.insert(rows.end(), more.begin(), more.end());
    }
  }
  // On a shared machine the better of before and after.
  const MeasuredCeilings after = measure_ceilings(DType::kBFloat16, bench.threads());
  if (after.value.peak_gflops > ceilings.value.peak_gflops) ceilings = after;
  for (LinearRow& row : rows) row.peak_gflops = ceilings.value.peak_gflops;
  fmt::print("Kernels {} on {} thread(s); compute ceiling {:.0f} GFLOP/s ({})\n{}", kernel.isa, bench.threads(),
             ceilings.value.peak_gflops, ceilings.compute_loop, rows_text(rows));
  fmt::print(
      "GB/s: W once. read GB/s: the loop that only reads, timed in turn. of bound: the time that the tighter of\n"
      "both ceilings allows, divided by the time taken.\n");
  if (!flags.json_file.empty()) {
    Json json = run_header(flags.commit, bench.threads());
    json["rows"] = Json::array();
    for (const LinearRow& row : rows) json["rows"].push_back(row_json(row, kernel.isa));
    write_json(flags.json_file, json);
  }
  return std::ranges::all_of(rows, &LinearRow::right) ? kExitRight : kExitWrongResult;
}

}  // namespace

void add_bench_linear(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand("linear", "Products with weight matrices, as text generation makes them");
  auto flags = std::make_shared<LinearFlags>();
  constexpr IntegerRange kSize{1, int64_t{1} << 24};
  add_integer(*command, "--rows", flags->rows, kSize, "rows of W (outputs); left out: four shapes of DeepSeek-V2-Lite");
  add_integer(*command, "--cols", flags->cols, kSize, "columns of W (inputs)");
  add_choice(*command, "--type", flags->type, {"bf16", "int8", "fp16", "fp32"}, "weights; left out: bf16 and int8");
  add_integers(*command, "--tokens", flags->tokens, {1, 65536}, "tokens of each product (1,2,4,8,16,64,256)");
  add_text(*command, "--isa", flags->isa, "NAME", "instruction set; left out: the best of this processor");
  add_integer(*command, "--threads", flags->threads, {0, 1024}, "0: as many as this process may use");
  add_number(*command, "--seconds", flags->seconds, 0.001, 3600, "time of timed repeats for each row (1)");
  add_text(*command, "--json", flags->json_file, "FILE", "also write the rows as JSON");
  add_text(*command, "--commit", flags->commit, "ID", "commit named in the JSON; left out: the one built from");
  command->footer(kExamples);
  command->callback([flags, &action] { action = [flags] { return run_linear(*flags); }; });
}

}  // namespace flashmla::cli
