#include "verify_run.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>

#include "cases/compare.h"
#include "cases/problem.h"
#include "decode_case.h"
#include "exit_code.h"
#include "fault.h"
#include "flashmla/flashmla.h"
#include "progress.h"

namespace flashmla::cli {

namespace {

constexpr const char* kLine = "{:<6} {:>8}  {:>9}  {:>9}  {:<27}  {}\n";

cases::Comparison compare_run(const cases::DecodeProblem& problem, const cases::DecodeOracle& oracle, double error) {
  cases::Comparison comparison = cases::compare(problem, oracle);  // also: everything written, and nothing else
  if (error == 0 || !comparison.ok) return comparison;
  cases::DecodeResult result = problem.result();
  inject_fault(result, error);
  return cases::compare(problem, oracle, result);
}

cases::DecodeOracle oracle_of(const cases::DecodeProblem& problem) {
  try {
    return cases::make_oracle(problem, {.threads = cpu_info().threads});
  } catch (const std::runtime_error& error) {
    throw UsageError(error.what());
  }
}

std::string share_text(double ratio) {
  return std::isfinite(ratio) ? fmt::format("{:.1f} %", 100 * ratio) : std::string("NaN/Inf");
}

Json row_of(const cases::DecodeCase& decode_case, const KernelChoice& choice, const cases::Comparison& comparison) {
  Json row;
  row["library"] = "flashmla";
  row["backend"] = choice.backend;
  row["kernel"] = choice.kernel;
  row["case"] = decode_case.name;
  row["right"] = comparison.ok;
  // A misplaced NaN or Inf has no size; JSON has no infinity.
  row["worst_share_of_bound"] = std::isfinite(comparison.worst_ratio) ? Json(comparison.worst_ratio) : Json(nullptr);
  row["out_error"] = comparison.out_error;
  row["lse_error"] = comparison.lse_error;
  row["worst"] = comparison.text;
  return row;
}

Context context_of(const VerifyTarget& target) {
  const Backend* backend = find_backend(target.backend);
  return {.device = {backend == nullptr ? DeviceType::kCPU : backend->device_type()},
          .backend = target.backend,
          .isa = target.isa,
          .threads = target.threads};
}

cases::Comparison verify_one(cases::DecodeProblem& problem, const cases::DecodeOracle& oracle, const Context& context,
                             const VerifyOptions& options, bool& failed) {
  const Status status = problem.run(context);
  failed = status.code() == StatusCode::kInternal;
  if (failed) return {.ok = false, .worst_ratio = std::numeric_limits<double>::infinity(), .text = status.text()};
  if (!status.ok()) throw UsageError(status.text());
  return compare_run(problem, oracle, options.inject_error);
}

void print_case(const cases::DecodeCase& decode_case, const KernelChoice& choice, const cases::Comparison& comparison,
                const VerifyOptions& options) {
  fmt::print(kLine, comparison.ok ? "right" : "WRONG", share_text(comparison.worst_ratio),
             fmt::format("{:.2e}", comparison.out_error), fmt::format("{:.2e}", comparison.lse_error), choice.kernel,
             decode_case.name);
  if (!comparison.ok || options.name_worst) fmt::print("       {}\n", comparison.text);
  std::fflush(stdout);
}

void print_verdict(const VerifySummary& summary, const std::set<std::string>& kernels, const std::string& refusal) {
  std::string names;
  for (const std::string& kernel : kernels) names += (names.empty() ? "" : ", ") + kernel;
  if (summary.left_out > 0) fmt::print("\nLeft out: {} cases; of the first: {}\n", summary.left_out, refusal);
  if (summary.cases == 0) {
    fmt::print("\nNothing to compare.\n");
  } else if (summary.wrong == 0) {
    fmt::print("\nRight: {} of {} results are within the contract's bound of the double-precision oracle ({}).\n",
               summary.cases, summary.cases, names);
  } else {
    fmt::print("\nWRONG: {} of {} results are not within the contract's bound of the double-precision oracle ({}).\n",
               summary.wrong, summary.cases, names);
  }
}

}  // namespace

VerifySummary verify_cases(const std::vector<cases::DecodeCase>& list, const std::vector<VerifyTarget>& targets,
                           const VerifyOptions& options) {
  VerifySummary summary;
  std::set<std::string> kernels;
  std::string refusal;  // of the first case that was left out
  bool failed = false;
  Progress progress(static_cast<int64_t>(list.size() * targets.size()));
  for (const cases::DecodeCase& decode_case : list) {
    if (failed) break;
    progress.show(summary.cases + summary.left_out, decode_case.name);
    cases::DecodeProblem problem(decode_case);
    const DecodeShape shape = value_or_usage_error(decode_shape(problem.params()));
    std::optional<cases::DecodeOracle> oracle;
    for (const VerifyTarget& target : targets) {
      if (failed) break;
      const Context context = context_of(target);
      const Result<KernelChoice> choice = explain_decode(shape, problem.params().options, context);
      if (options.leave_out && choice.status().code() == StatusCode::kUnsupported) {
        if (summary.left_out++ == 0) refusal = choice.status().text();
        continue;
      }
      if (!choice.ok()) throw UsageError(choice.status().text());
      if (!oracle) oracle = oracle_of(problem);
      const cases::Comparison comparison = verify_one(problem, *oracle, context, options, failed);
      progress.clear();
      if (summary.cases++ == 0) fmt::print(kLine, "result", "of bound", "out error", "lse error", "kernel", "case");
      summary.wrong += comparison.ok ? 0 : 1;
      kernels.insert(choice.value().kernel);
      summary.rows.push_back(row_of(decode_case, choice.value(), comparison));
      print_case(decode_case, choice.value(), comparison, options);
      progress.show(summary.cases + summary.left_out, decode_case.name);
    }
  }
  progress.clear();
  if (summary.cases == 0 && summary.left_out > 0) throw UsageError(refusal);
  print_verdict(summary, kernels, refusal);
  return summary;
}

}  // namespace flashmla::cli
