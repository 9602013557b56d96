// flashmla info: the machine, the back ends and, with shape flags, what a call would run and what bounds it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>

#include "ceilings.h"
#include "commands.h"
#include "cost.h"
#include "exit_code.h"
#include "flags.h"
#include "flashmla/flashmla.h"
#include "info_model.h"
#include "run_header.h"
#include "shape_flags.h"
#include "table.h"

namespace flashmla::cli {

namespace {

constexpr const char* kExamples =
    R"(With any shape flag, also says which kernel runs the call and what bounds it. With --model, what a model takes.

Examples:
  flashmla info
  flashmla info --heads-q 128 --batch 8 --seq-k 4096
  flashmla info --heads-q 16 --seq-k 512:32768 --isa avx2 --threads 1
  flashmla info --heads-q 128 --ridge 295            a device whose ridge is known: 295 flop/B
  flashmla info --model deepseek-ai/DeepSeek-V2-Lite-Chat --memory 24GiB --max-model-len 32768
  flashmla info --model config.json --memory 141GB --gpus 8)";

struct InfoFlags {
  ShapeFlags shape;
  InfoModelFlags model;
  double ridge = 0;  // 0: measured
};

const char* device_text(DeviceType type) { return type == DeviceType::kCPU ? "CPU" : "CUDA"; }

void line(const char* name, const std::string& text) { fmt::print("  {:<14}{}\n", name, text); }

void print_machine(const CpuInfo& cpu, Json& json) {
  fmt::print("Machine\n");
  line("processor", cpu.model);
  line("threads", fmt::format("{} (usable by this process)", cpu.threads));
  line("ISAs", fmt::format("{} (best first)", fmt::join(cpu.isas, ", ")));
  const auto cache = [](int64_t bytes) {
    return bytes > 0 ? bytes_text(static_cast<double>(bytes)) : std::string("unknown");
  };
  line("L2 cache", fmt::format("{} of one core", cache(cpu.l2_bytes)));
  line("L3 cache", fmt::format("{} as one core sees it", cache(cpu.l3_bytes)));
  json["machine"] = {{"processor", cpu.model},
                     {"threads", cpu.threads},
                     {"isas", cpu.isas},
                     {"l2_bytes", cpu.l2_bytes},
                     {"l3_bytes", cpu.l3_bytes}};
}

void print_backends(Json& json) {
  fmt::print("\nBack ends (of those that take a call, the one with the highest priority runs it)\n");
  Table table({{"name", Align::kLeft}, {"device", Align::kLeft}, {"priority"}});
  json["backends"] = Json::array();
  for (const Backend* backend : backends()) {
    table.add({std::string(backend->name()), device_text(backend->device_type()), std::to_string(backend->priority())});
    json["backends"].push_back({{"name", backend->name()},
                                {"device", device_text(backend->device_type())},
                                {"priority", backend->priority()}});
  }
  fmt::print("{}", table.text(2));
}

void print_formats(Json& json) {
  fmt::print("\nKV formats\n");
  Table table({{"name", Align::kLeft}, {"elements", Align::kLeft}, {"B/token"}, {"of"}, {"implemented", Align::kLeft}});
  json["kv_formats"] = Json::array();
  for (const KvFormatInfo& format : kv_formats()) {
    const int64_t latent = format.format == KvFormat::kFp8V4 ? 448 : 512;  // the widths each was made for
    const int64_t bytes = kv_bytes_per_token(format.format, latent, 64);
    table.add({format.name, dtype_name(format.element), std::to_string(bytes), fmt::format("{}+64", latent),
               format.implemented ? "yes" : "not yet"});
    json["kv_formats"].push_back({{"name", format.name},
                                  {"element", dtype_name(format.element)},
                                  {"latent_dim", latent},
                                  {"bytes_per_token", bytes},
                                  {"implemented", format.implemented}});
  }
  fmt::print("{}", table.text(2));
}

// The device's side of the roofline: given by --ridge, or measured.
Ceilings print_device(const InfoFlags& flags, DType dtype, Json& json) {
  if (flags.ridge > 0) {
    line("device", fmt::format("ridge {:.4g} flop/B (from --ridge)", flags.ridge));
    json["ridge"] = flags.ridge;
    return {flags.ridge, 1};  // only the ratio is known
  }
  const MeasuredCeilings measured = measure_ceilings(dtype, static_cast<int>(flags.shape.threads));
  const Ceilings& value = measured.value;
  line("device", fmt::format("{:.4g} GFLOP/s, {:.4g} GB/s, ridge {:.3g} flop/B; measured now on {} thread(s):",
                             value.peak_gflops, value.peak_gbps, value.ridge(), measured.threads));
  line("", measured.compute_loop);
  line("", measured.read_loop);
  json["ridge"] = value.ridge();
  json["peak_tflops"] = value.peak_gflops * 1e-3;
  json["peak_gbps"] = value.peak_gbps;
  return value;
}

struct Call {
  std::vector<int64_t> lengths;
  DecodeShape shape;
  KernelChoice choice;
  int64_t workspace = 0;
  Cost cost;
};

// Throws UsageError with the library's text.
Call call_of(const ShapeFlags& flags) {
  Call call;
  call.lengths = request_lengths(flags);
  call.shape = checked_shape(flags, call.lengths);
  call.choice = value_or_usage_error(explain_decode(call.shape, run_options(flags), run_context(flags)));
  call.workspace = value_or_usage_error(workspace_bytes(call.shape, run_options(flags), run_context(flags)));
  call.cost = decode_cost(call.shape, call.lengths);
  return call;
}

void print_call(const InfoFlags& flags, const Call& call, Json& json) {
  const Cost& cost = call.cost;
  fmt::print("\nThis call\n");
  line("shape", shape_text(call.shape, call.lengths));
  line("runs", fmt::format("kernel {} of back end {}", call.choice.kernel, call.choice.backend));
  line("because", call.choice.reason);
  line("workspace", bytes_text(static_cast<double>(call.workspace)));
  line("work", fmt::format("{:.4g} GFLOP, {:.4g} MB (cache once, q, out): {:.3g} flop/B", cost.flops * 1e-9,
                           cost.bytes * 1e-6, cost.intensity()));
  Json entry = {{"shape", shape_text(call.shape, call.lengths)},
                {"backend", call.choice.backend},
                {"kernel", call.choice.kernel},
                {"reason", call.choice.reason},
                {"workspace_bytes", call.workspace},
                {"flops", cost.flops},
                {"bytes", cost.bytes},
                {"intensity", cost.intensity()}};
  const Ceilings ceilings = print_device(flags, call.shape.dtype, entry);
  const Bound bound = bound_of(cost, ceilings);
  const std::string at_best = flags.ridge > 0 ? "" : fmt::format("; at best {}", time_text(bound.time_us));
  line("bound", fmt::format("{}-bound: {:.3g} flop/B is {} the ridge{}", bound.name(), cost.intensity(),
                            bound.compute ? "above" : "not above", at_best));
  entry["bound"] = bound.name();
  if (flags.ridge <= 0) entry["bound_us"] = bound.time_us;
  json["call"] = entry;
}

int run_info_model(const InfoFlags& flags) {
  if (flags.shape.any_given || flags.ridge > 0) {
    throw UsageError("--model: got it together with flags of a call; want one or the other");
  }
  Json json = run_header("", cpu_info().threads);
  json["model"] = print_model(flags.model);
  if (!flags.shape.json_file.empty()) write_json(flags.shape.json_file, json);
  return kExitRight;
}

int run_info(const InfoFlags& flags) {
  check_file("--json", flags.shape.json_file);
  if (!flags.model.model.empty()) return run_info_model(flags);
  if (flags.model.room_given()) throw UsageError("--memory, --gpus, --max-model-len: want --model with them");
  std::optional<Call> call;
  if (flags.shape.any_given || flags.ridge > 0) call = call_of(flags.shape);
  const CpuInfo cpu = cpu_info();
  Json json = run_header("", cpu.threads);
  fmt::print("flashmla {} (commit {})\n\n", FLASHMLA_VERSION_STRING, built_commit());
  print_machine(cpu, json);
  print_backends(json);
  print_formats(json);
  if (call.has_value()) print_call(flags, *call, json);
  if (!flags.shape.json_file.empty()) write_json(flags.shape.json_file, json);
  return kExitRight;
}

}  // namespace

void add_info(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("info", "This machine, the back ends, and which kernel runs a shape");
  auto flags = std::make_shared<InfoFlags>();
  add_shape_flags(*command, flags->shape);
  add_number(*command, "--ridge", flags->ridge, 1e-3, 1e6,
             "flop/B where the device turns compute-bound; else measured");
  add_info_model_flags(*command, flags->model);
  command->footer(kExamples);
  command->callback([command, flags, &action] {
    finish_shape_flags(*command, flags->shape);
    action = [flags] { return run_info(*flags); };
  });
}

}  // namespace flashmla::cli
