#include "bench_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "bench_check.h"
#include "cases/memory.h"
#include "cases/problem.h"
#include "decode_case.h"
#include "exit_code.h"
#include "progress.h"

namespace flashmla::cli {

namespace {

// Copies of the tensors together exceed the last-level cache this many times, so that each call finds its cache cold.
constexpr double kCacheMultiple = 4;
constexpr double kUnknownCacheBytes = 64.0 * (1 << 20);  // taken where the machine does not tell its own
constexpr int64_t kMostCopies = 1024;

int64_t copies_of(const cases::DecodeCase& decode_case) {
  const auto known = static_cast<double>(cpu_info().l3_bytes);
  const double wanted = kCacheMultiple * (known > 0 ? known : kUnknownCacheBytes);
  const double bytes = std::max(tensor_bytes(decode_case), 1.0);
  const double fitting = std::max(1.0, std::floor(0.5 * free_memory_bytes() / bytes));
  return static_cast<int64_t>(
      std::clamp(std::ceil(wanted / bytes), 2.0, std::clamp<double>(fitting, 2.0, kMostCopies)));
}

// Equal content at different places: every copy has pages of its own, in an order of its own.
std::vector<std::unique_ptr<cases::DecodeProblem>> make_copies(const cases::DecodeCase& decode_case, int64_t count) {
  std::vector<std::unique_ptr<cases::DecodeProblem>> copies;
  for (int64_t i = 0; i < count; ++i) {
    cases::DecodeCase copy = decode_case;
    copy.page_seed += static_cast<uint64_t>(i);
    copies.push_back(std::make_unique<cases::DecodeProblem>(std::move(copy)));
  }
  return copies;
}

void time_row(const cases::DecodeCase& decode_case, const BenchOptions& options, BenchRow& row) {
  row.copies = copies_of(decode_case);
  row.copies_bytes = static_cast<double>(row.copies) * tensor_bytes(decode_case);
  const auto copies = make_copies(decode_case, row.copies);
  const int64_t bytes = value_or_usage_error(workspace_bytes(row.shape, decode_case.options, options.context));
  const cases::Buffer workspace(bytes);
  Status failed;
  row.times = time_repeats(
      [&](int64_t repeat) {
        const cases::DecodeProblem& problem = *copies[static_cast<size_t>(repeat % row.copies)];
        const Status status = decode(problem.params(), {workspace.data(), workspace.bytes()}, options.context);
        if (!status.ok()) failed = status;
      },
      options.most_seconds);
  if (!failed.ok()) throw UsageError(failed.text());
}

BenchRow bench_case(const cases::DecodeCase& decode_case, const BenchOptions& options) {
  BenchRow row;
  row.name = decode_case.name;
  row.lengths = lengths_of(decode_case);
  {
    cases::DecodeProblem problem(decode_case);
    row.shape = value_or_usage_error(decode_shape(problem.params()));
    row.choice = kernel_of(row.shape, decode_case.options, options.context);
    row.cost = decode_cost(row.shape, row.lengths);
    if (const Status status = problem.run(options.context); !status.ok()) throw UsageError(status.text());
    const SampledCheck check = check_sampled_rows(problem, options.inject_error);
    row.right = check.right;
    row.check = check.text;
  }
  if (row.right) time_row(decode_case, options, row);
  return row;
}

}  // namespace

int64_t BenchRow::longest() const { return lengths.empty() ? 0 : *std::ranges::max_element(lengths); }

double BenchRow::mean_length() const {
  if (lengths.empty()) return 0;
  return std::accumulate(lengths.begin(), lengths.end(), 0.0) / static_cast<double>(lengths.size());
}

double BenchRun::share_of_bound(const BenchRow& row) const {
  return row.times.median_us > 0 ? bound(row).time_us / row.times.median_us : 0;
}

bool BenchRun::right() const {
  return std::ranges::all_of(rows, [](const BenchRow& row) { return row.right; });
}

BenchRun bench_cases(const std::vector<cases::DecodeCase>& list, const BenchOptions& options) {
  BenchRun run;
  const DType dtype = list.empty() ? DType::kBFloat16 : list.front().dtype;
  const auto total = static_cast<int64_t>(list.size());
  Progress progress(total);
  // Other programs can only make a ceiling look lower than it is: hence many measurements, spread over the run.
  const auto measure = [&] {
    MeasuredCeilings ceilings = measure_ceilings(dtype, options.context.threads);
    Ceilings& value = ceilings.value;
    const Ceilings& before = run.ceilings.value;
    value = {std::max(value.peak_gflops, before.peak_gflops), std::max(value.peak_gbps, before.peak_gbps)};
    run.ceilings = std::move(ceilings);
  };
  for (const cases::DecodeCase& decode_case : list) {
    progress.show(static_cast<int64_t>(run.rows.size()), decode_case.name);
    measure();
    run.rows.push_back(bench_case(decode_case, options));
  }
  progress.show(total, "ceilings");
  measure();
  return run;
}

}  // namespace flashmla::cli
