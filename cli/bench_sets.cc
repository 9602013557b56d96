#include "bench_sets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "decode_case.h"
#include "exit_code.h"

namespace flashmla::cli {

namespace {

constexpr int64_t kShortest = 512;
constexpr int64_t kLongest = 65536;

cases::DecodeCase equal_lengths(ShapeFlags flags, int64_t batch, int64_t heads_q, int64_t seq_k) {
  flags.batch = batch;
  flags.heads_q = heads_q;
  flags.seq_k = {{seq_k}, false};
  return decode_case_of(flags);
}

void refuse(const std::string& set, const CLI::App& command, const std::vector<std::string>& decided) {
  for (const std::string& flag : decided) {
    if (command.get_option(flag)->count() == 0) continue;
    throw UsageError(fmt::format("{}: got it together with --set {}, which decides {}; want one or the other", flag,
                                 set, fmt::join(decided, ", ")));
  }
}

}  // namespace

const std::vector<std::string>& bench_set_names() {
  static const std::vector<std::string> names = {"cpu", "demo", "lengths"};
  return names;
}

std::vector<cases::DecodeCase> length_sweep(const ShapeFlags& flags, int64_t longest) {
  std::vector<cases::DecodeCase> list;
  for (int64_t length = kShortest; length <= longest; length *= 2) {
    list.push_back(equal_lengths(flags, flags.batch, flags.heads_q, length));
  }
  return list;
}

std::vector<cases::DecodeCase> bench_set(const std::string& name, const CLI::App& command, const ShapeFlags& flags) {
  if (name == "cpu") {
    refuse(name, command, {"--batch", "--heads-q", "--seq-k"});
    return {equal_lengths(flags, 8, 16, 4096), equal_lengths(flags, 8, 128, 4096), equal_lengths(flags, 1, 16, 32768)};
  }
  if (name == "lengths") {
    refuse(name, command, {"--seq-k"});
    ShapeFlags one = flags;
    if (command.get_option("--batch")->count() == 0) one.batch = 1;
    return length_sweep(one, kLongest);
  }
  refuse(name, command,
         {"--batch", "--heads-q", "--heads-kv", "--seq-q", "--seq-k", "--page-size", "--latent-dim", "--rope-dim",
          "--dtype", "--causal", "--seed"});
  std::vector<cases::DecodeCase> list = cases::demo_cases();
  for (cases::DecodeCase& decode_case : list) decode_case.options = run_options(flags);
  return list;
}

}  // namespace flashmla::cli
