// flashmla verify: any shape, or a named list of cases, against the double-precision oracle.
#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "decode_case.h"
#include "exit_code.h"
#include "flags.h"
#include "flashmla/backend.h"
#include "flashmla/cpu.h"
#include "shape_flags.h"
#include "verify_run.h"

namespace flashmla::cli {

namespace {

constexpr const char* kExamples =
    R"(Inputs lie in hostile memory: every byte that no valid token owns holds NaN or infinity. A result is right when
every element is within the bound of docs/math.md and nothing else has been written. Without flags that
describe a call the list `quick` is run. --isa all runs every instruction set of this processor. --backend cuda
copies each call to the memory of the current GPU and its results back; cases of a list that it does not compute
(fp32, for example) are left out and counted.

Examples:
  flashmla verify
  flashmla verify --heads-q 20 --page-size 61 --seq-q 3 --seq-k 700
  flashmla verify --heads-q 128 --seq-k 1,0,4096,77 --causal --seq-q 2 --isa all
  flashmla verify --dtype fp32 --distribution adversarial --splits 7
  flashmla verify --cases full --json verify.json
  flashmla verify --backend cuda --heads-q 128 --seq-k 1,0,4096,77

Exit codes: 0 right, 1 wrong result, 2 bad usage.)";

constexpr cases::Inputs kInputs[] = {cases::Inputs::kRandom, cases::Inputs::kPeaked, cases::Inputs::kFlat,
                                     cases::Inputs::kAdversarial};

struct VerifyFlags {
  ShapeFlags shape;
  std::string distribution = "random";
  std::string cases;
  bool one_call = false;
  double inject_error = 0;
};

std::vector<cases::DecodeCase> named_cases(const std::string& name) {
  if (name == "full") return cases::full_cases();
  return name == "demo" ? cases::demo_cases() : cases::quick_cases();
}

std::vector<VerifyTarget> targets_of(const ShapeFlags& flags) {
  const auto threads = static_cast<int32_t>(flags.threads);
  const Backend* backend = find_backend(flags.backend);
  if (!flags.isa.empty() && backend != nullptr && backend->device_type() != DeviceType::kCPU) {
    throw UsageError(fmt::format("--isa: got '{}' with back end {}; want none: instruction sets are the CPU's",
                                 flags.isa, flags.backend));
  }
  if (flags.isa != "all") return {{flags.backend, flags.isa, threads}};
  std::vector<VerifyTarget> targets;
  for (const std::string& isa : cpu_info().isas) {
    targets.push_back({flags.backend.empty() ? "cpu" : flags.backend, isa, threads});
  }
  return targets;
}

// Whether any flag describes a single call; otherwise a named list is run.
bool describes_one_call(const CLI::App& command, const ShapeFlags& shape) {
  if (shape.shape_given) return true;
  for (const char* name : {"--distribution", "--splits", "--seed"}) {
    if (command.get_option(name)->count() > 0) return true;
  }
  return false;
}

int run_verify(const VerifyFlags& flags) {
  check_file("--json", flags.shape.json_file);
  std::vector<cases::DecodeCase> list;
  if (flags.one_call) {
    list.push_back(decode_case_of(flags.shape));
    for (const cases::Inputs inputs : kInputs) {
      if (cases::inputs_name(inputs) == flags.distribution) list.front().inputs = inputs;
    }
    list.front().name += fmt::format(", {}, seed {}", flags.distribution, flags.shape.seed);
  } else {
    list = named_cases(flags.cases);
  }
  const VerifyOptions options{
      .inject_error = flags.inject_error, .name_worst = list.size() == 1, .leave_out = !flags.one_call};
  VerifySummary summary = verify_cases(list, targets_of(flags.shape), options);
  if (!flags.shape.json_file.empty()) {
    Json json = run_header("", flags.shape.threads > 0 ? static_cast<int>(flags.shape.threads) : cpu_info().threads);
    json["right"] = summary.wrong == 0;
    json["left_out"] = summary.left_out;
    json["rows"] = std::move(summary.rows);
    write_json(flags.shape.json_file, json);
  }
  return summary.wrong == 0 ? kExitRight : kExitWrongResult;
}

}  // namespace

void add_verify(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("verify", "Compare results with the double-precision oracle");
  auto flags = std::make_shared<VerifyFlags>();
  add_shape_flags(*command, flags->shape);
  add_choice(*command, "--distribution", flags->distribution, {"random", "peaked", "flat", "adversarial"},
             "values of queries and keys");
  add_choice(*command, "--cases", flags->cases, {"quick", "full", "demo"}, "a named list instead of one shape");
  add_fault(*command, flags->inject_error);
  command->footer(kExamples);
  command->callback([command, flags, &action] {
    finish_shape_flags(*command, flags->shape);
    flags->one_call = describes_one_call(*command, flags->shape);
    if (flags->one_call && !flags->cases.empty()) {
      throw UsageError(fmt::format(
          "--cases: got '{}' together with flags that describe one call; want one or the other", flags->cases));
    }
    action = [flags] { return run_verify(*flags); };
  });
}

}  // namespace flashmla::cli
