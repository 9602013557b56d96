// flashmla bench decode: speed against the ceilings of the machine.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench_report.h"
#include "bench_run.h"
#include "bench_sets.h"
#include "commands.h"
#include "decode_case.h"
#include "device_model.h"
#include "exit_code.h"
#include "flags.h"
#include "shape_flags.h"

namespace flashmla::cli {

namespace {

constexpr const char* kExamples =
    R"(Each shape is first compared with the oracle on sampled rows, then timed: at least 20 repeats after a warm-up, over
copies of the tensors that together exceed the last-level cache, so that every call reads its cache from memory. The
ceilings (multiply-adds from registers, reading a large buffer) are measured in the same run, with as many threads.

Sets: cpu      b 8 h_q 16 s_k 4096; b 8 h_q 128 s_k 4096; b 1 h_q 16 s_k 32768
      demo     DeepSeek-V2-Lite (16 heads) and V3 (128 heads), lengths varied up to 4096
      lengths  b 1 h_q 16 unless given, s_k 512 .. 65536

Examples:
  flashmla bench decode
  flashmla bench decode --batch 8 --heads-q 128 --seq-k 1024:8192
  flashmla bench decode --set cpu --json cpu.json --csv cpu.csv
  flashmla bench decode --set lengths --heads-q 128 --plot lengths.svg --roofline roofline.svg
  flashmla bench decode --set cpu --isa avx2 --threads 1 --seconds 3
  flashmla bench decode --model-device h20 --batch 64 --heads-q 16 --seq-k 4096

With `--peers all --plot FOLDER`, flashmla and other libraries take turns on the same inputs, on the GPU where there is
one. Python runs them, with sets and flags of its own (--hot, --eager, --log, --format, --device): see `--peers all --help`.

Exit codes: 0 right, 1 wrong result (not timed), 2 bad usage.)";

struct BenchFlags {
  ShapeFlags shape;
  std::string set;
  std::string csv_file;
  std::string plot_file;
  std::string roofline_file;
  std::string model_device;
  std::string peers;  // never read: main.cc has handed over by then
  std::string commit;
  double seconds = 10;
  double inject_error = 0;
};

// Floors of a GPU that need not be here. Nothing is run, so that what only a run has is refused.
int model_bench(const CLI::App& command, const BenchFlags& flags) {
  for (const char* flag :
       {"--csv", "--plot", "--roofline", "--seconds", "--peers", "--backend", "--isa", "--threads"}) {
    if (command.count(flag) > 0)
      throw UsageError(fmt::format("{}: got it together with --model-device, which runs nothing", flag));
  }
  const std::vector<cases::DecodeCase> list = flags.set.empty()
                                                  ? std::vector<cases::DecodeCase>{described_case(flags.shape)}
                                                  : bench_set(flags.set, command, flags.shape);
  if (std::ranges::any_of(list, [](const cases::DecodeCase& c) { return c.dtype == DType::kFloat32; })) {
    throw UsageError("--dtype: got 'fp32' together with --model-device; want bf16 or fp16, whose rates are known");
  }
  const DeviceModel& device = device_model(flags.model_device);
  fmt::print("{}", floors_text(device, list));
  if (!flags.shape.json_file.empty()) write_json(flags.shape.json_file, floors_json(device, list, flags.commit));
  return kExitRight;
}

int run_bench(const CLI::App& command, const BenchFlags& flags) {
  if (!flags.model_device.empty()) {
    check_file("--json", flags.shape.json_file);
    return model_bench(command, flags);
  }
  check_file("--csv", flags.csv_file);
  check_file("--json", flags.shape.json_file);
  check_file("--plot", flags.plot_file);
  check_file("--roofline", flags.roofline_file);
  const std::vector<cases::DecodeCase> list = flags.set.empty()
                                                  ? std::vector<cases::DecodeCase>{decode_case_of(flags.shape)}
                                                  : bench_set(flags.set, command, flags.shape);
  const BenchRun run = bench_cases(list, {run_context(flags.shape), flags.seconds, flags.inject_error});
  print_bench(run);
  if (!flags.csv_file.empty()) write_file("--csv", flags.csv_file, bench_csv(run));
  if (!flags.shape.json_file.empty()) write_json(flags.shape.json_file, bench_json(run, flags.commit));
  if (!flags.plot_file.empty()) write_file("--plot", flags.plot_file, length_plot(run));
  if (!flags.roofline_file.empty()) write_file("--roofline", flags.roofline_file, roofline_plot(run));
  return run.right() ? kExitRight : kExitWrongResult;
}

}  // namespace

void add_bench(CLI::App& program, Action& action) {
  CLI::App* bench = program.add_subcommand("bench", "Time an operation against this machine's ceilings");
  bench->require_subcommand(1);
  bench->footer("Example:\n  flashmla bench decode --set cpu");
  CLI::App* command = bench->add_subcommand("decode", "Decode attention over a paged latent cache");
  auto flags = std::make_shared<BenchFlags>();
  add_shape_flags(*command, flags->shape);
  add_choice(*command, "--set", flags->set, bench_set_names(), "a named set of shapes");
  add_number(*command, "--seconds", flags->seconds, 0.001, 3600, "most time of timed repeats for each shape (10)");
  add_choice(*command, "--model-device", flags->model_device, device_model_names(),
             "run nothing: print what this GPU allows by its data sheet");
  add_text(*command, "--peers", flags->peers, "all|LIST", "compare with other libraries (needs Python with torch)");
  add_text(*command, "--csv", flags->csv_file, "FILE", "also write the rows as CSV");
  add_text(*command, "--plot", flags->plot_file, "FILE", "draw GB/s over cached length (SVG)");
  add_text(*command, "--roofline", flags->roofline_file, "FILE", "draw the roofline (SVG)");
  add_text(*command, "--commit", flags->commit, "ID", "commit named in the JSON; left out: the one built from");
  add_fault(*command, flags->inject_error);
  command->footer(kExamples);
  command->callback([command, flags, &action] {
    finish_shape_flags(*command, flags->shape);
    action = [command, flags] { return run_bench(*command, *flags); };
  });
  add_bench_compare(*bench, action);
  add_bench_linear(*bench, action);
  add_bench_model(*bench, action);
}

}  // namespace flashmla::cli
