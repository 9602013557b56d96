#include "verify_run.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
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

cases::Comparison verify_one(cases::DecodeProblem& problem, const cases::DecodeOracle& oracle,
                             const VerifyTarget& target, const VerifyOptions& options, KernelChoice& choice) {
  const Context context{.backend = target.backend, .isa = target.isa, .threads = target.threads};
  const DecodeShape shape = value_or_usage_error(decode_shape(problem.params()));
  choice = kernel_of(shape, problem.params().options, context);
  if (const Status status = problem.run(context); !status.ok()) throw UsageError(status.text());
  return compare_run(problem, oracle, options.inject_error);
}

void print_verdict(const VerifySummary& summary, const std::set<std::string>& kernels) {
  std::string names;
  for (const std::string& kernel : kernels) names += (names.empty() ? "" : ", ") + kernel;
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
  Progress progress(static_cast<int64_t>(list.size() * targets.size()));
  for (const cases::DecodeCase& decode_case : list) {
    progress.show(summary.cases, decode_case.name);
    cases::DecodeProblem problem(decode_case);
    const cases::DecodeOracle oracle = oracle_of(problem);
    for (const VerifyTarget& target : targets) {
      KernelChoice choice;
      const cases::Comparison comparison = verify_one(problem, oracle, target, options, choice);
      progress.clear();
      if (summary.cases++ == 0) fmt::print(kLine, "result", "of bound", "out error", "lse error", "kernel", "case");
      summary.wrong += comparison.ok ? 0 : 1;
      kernels.insert(choice.kernel);
      summary.rows.push_back(row_of(decode_case, choice, comparison));
      fmt::print(kLine, comparison.ok ? "right" : "WRONG", share_text(comparison.worst_ratio),
                 fmt::format("{:.2e}", comparison.out_error), fmt::format("{:.2e}", comparison.lse_error),
                 choice.kernel, decode_case.name);
      if (!comparison.ok || options.name_worst) fmt::print("       {}\n", comparison.text);
      std::fflush(stdout);
      progress.show(summary.cases, decode_case.name);
    }
  }
  progress.clear();
  print_verdict(summary, kernels);
  return summary;
}

}  // namespace flashmla::cli
