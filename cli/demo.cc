// flashmla demo: the proof and the speed on DeepSeek shapes, in one go.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "bench_report.h"
#include "bench_run.h"
#include "bench_sets.h"
#include "commands.h"
#include "demo_model.h"
#include "exit_code.h"
#include "flags.h"
#include "verify_run.h"

namespace flashmla::cli {

namespace {

constexpr const char* kExamples =
    R"(Decodes batches of DeepSeek-V2-Lite (16 heads) and DeepSeek-V3 (128 heads) over a paged latent cache with varied
lengths, compares every element with the double-precision oracle, then times these shapes and a sweep of lengths, and
draws two plots. With --model, the demonstration model answers questions last. Takes one to three minutes on two cores.

Examples:
  flashmla demo
  flashmla demo --out results --threads 2
  flashmla demo --model models/demo

Exit codes: 0 right, 1 wrong result, 2 bad usage.)";

struct DemoFlags {
  std::string folder = ".";
  std::string model;
  int64_t threads = 0;
  double inject_error = 0;
};

std::vector<cases::DecodeCase> timed_cases() {
  std::vector<cases::DecodeCase> list = cases::demo_cases();
  ShapeFlags one;
  one.batch = 1;
  for (cases::DecodeCase& decode_case : length_sweep(one, 65536)) list.push_back(std::move(decode_case));
  one.heads_q = 128;
  for (cases::DecodeCase& decode_case : length_sweep(one, 16384)) list.push_back(std::move(decode_case));
  return list;
}

std::string drawn(const std::filesystem::path& folder, const char* name, const std::string& content) {
  std::string path = (folder / name).string();
  write_file("--out", path, content);
  return path;
}

void print_sentence(const BenchRun& run) {
  std::vector<double> shares;
  for (const BenchRow& row : run.rows) shares.push_back(100 * run.share_of_bound(row));
  std::ranges::sort(shares);
  fmt::print(
      "\nEvery result is right, and decode runs at {:.0f} % of what this machine's arithmetic or memory allows "
      "(median of {} shapes; {:.0f} to {:.0f} %).\n",
      shares[shares.size() / 2], shares.size(), shares.front(), shares.back());
}

int say_wrong() {
  fmt::print("\nThis build computes WRONG results on this machine: see the lines marked WRONG above.\n");
  return kExitWrongResult;
}

int run_demo(const DemoFlags& flags) {
  const std::filesystem::path folder = flags.folder;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw UsageError(
        fmt::format("--out: got '{}', which cannot be made ({}); want a folder", flags.folder, error.message()));
  }
  const auto threads = static_cast<int32_t>(flags.threads);
  fmt::print(
      "1. Right? Every element against the double-precision oracle, with NaN in all memory that no token owns.\n\n");
  const VerifySummary summary =
      verify_cases(cases::demo_cases(), {{"", "", threads}}, {.inject_error = flags.inject_error});
  if (summary.wrong != 0) return say_wrong();  // the speed of wrong results is of no interest
  fmt::print("\n2. Fast? The same shapes, then one request of growing length.\n\n");
  BenchOptions options;
  options.context.threads = threads;
  options.most_seconds = 4;
  const BenchRun run = bench_cases(timed_cases(), options);
  print_bench(run);
  fmt::print("\nPlots: {}\n       {}\nData:  {}\n", drawn(folder, "decode-lengths.svg", length_plot(run)),
             drawn(folder, "decode-roofline.svg", roofline_plot(run)),
             drawn(folder, "decode.json", bench_json(run, "").dump(2) + "\n"));
  if (!run.right()) return say_wrong();
  if (!flags.model.empty()) {
    fmt::print("\n3. Of use? A small DeepSeek-V2 model answers what can be checked.\n\n");
    if (!demo_model_answers(flags.model, threads)) return say_wrong();
  }
  print_sentence(run);
  return kExitRight;
}

}  // namespace

void add_demo(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("demo", "verify and bench on DeepSeek shapes, with plots");
  auto flags = std::make_shared<DemoFlags>();
  add_text(*command, "--out", flags->folder, "DIR", "folder of the plots (this one)");
  add_text(*command, "--model", flags->model, "DIR", "also let the demonstration model of this folder answer");
  add_integer(*command, "--threads", flags->threads, {0, 4096}, "threads; 0: as many as this process may use");
  add_fault(*command, flags->inject_error);
  command->footer(kExamples);
  command->callback([flags, &action] { action = [flags] { return run_demo(*flags); }; });
}

}  // namespace flashmla::cli
