#include "model_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "exit_code.h"
#include "flags.h"
#include "progress.h"

namespace flashmla::cli {

namespace {

constexpr int64_t kMany = int64_t{1} << 31;
constexpr int64_t kDefaultModelLen = 4096;

volatile std::sig_atomic_t interrupt_seen = 0;

void on_interrupt(int) { interrupt_seen = 1; }

}  // namespace

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  add_text(command, "--model", flags.model, "MODEL", "checkpoint folder, or ORG/NAME in a local cache")->required();
  add_choice(command, "--backend", flags.backend, {"reference", "cpu"}, "attention back end (default: the best)");
  add_choice(command, "--attention-form", flags.attention_form, {"auto", "mqa", "mha"},
             "absorbed, decompressed, or by cost for each step");
  add_choice(command, "--dtype", flags.dtype, {"auto", "bf16", "fp32"}, "of the cache and the attention");
  add_choice(command, "--quantization", flags.quantization, {"int8"}, "quantise the weights by row while loading");
  add_integer(command, "--random-weights", flags.random_seed, {0, kMany},
              "full-size random weights of this seed instead of the checkpoint's: for measurements");
  add_integer(command, "--threads", flags.threads, {0, 1024}, "0: all that the process may use");
  add_integer(command, "--max-model-len", flags.max_model_len, {2, kMany},
              "tokens of a request, prompt and answer; default: the model's positions, at most 4096")
      ->default_str("");
  add_integer(command, "--block-size", flags.block_size, {1, 4096}, "tokens of a cache page");
  add_integer(command, "--max-num-seqs", flags.max_num_seqs, {1, 4096}, "requests that run at once");
}

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  add_integer(command, "--max-tokens", flags.max_tokens, {1, kMany}, "of an answer");
  add_number(command, "--temperature", flags.temperature, 0, 100, "0: always the likeliest token");
  add_number(command, "--top-p", flags.top_p, 0, 1, "choose among the likeliest tokens of this probability");
  add_integer(command, "--top-k", flags.top_k, {0, kMany}, "choose among this many likeliest tokens; 0: all");
  add_integer(command, "--seed", flags.seed, {0, kMany}, "of the choices");
  add_texts(command, "--stop", flags.stop, "text that ends the answer (may be repeated)");
  add_integers(command, "--stop-token-ids", flags.stop_token_ids, {0, kMany},
               "tokens that end the answer, a comma list");
  command.add_flag("--ignore-eos", flags.ignore_eos, "go on past the end token: always --max-tokens tokens");
}

runner::SamplingParams SamplingFlags::params() const {
  runner::SamplingParams params;
  params.max_tokens = max_tokens;
  params.temperature = temperature;
  params.top_p = top_p;
  params.top_k = top_k;
  params.seed = static_cast<uint64_t>(seed);
  params.stop = stop;
  for (int64_t id : stop_token_ids) params.stop_token_ids.push_back(static_cast<int32_t>(id));
  params.ignore_eos = ignore_eos;
  if (const Status status = runner::check_sampling(params); !status.ok()) throw UsageError(status.text());
  return params;
}

runner::LoadedModel load(const ModelFlags& flags) {
  runner::ModelSource source;
  source.model = flags.model;
  source.dtype = flags.dtype;
  source.quantization = flags.quantization;
  if (flags.random_seed >= 0) source.random_seed = static_cast<uint64_t>(flags.random_seed);
  source.threads = static_cast<int32_t>(flags.threads);
  constexpr int64_t kSteps = 100;
  Progress progress(kSteps);
  source.progress = [&](double done) { progress.show(static_cast<int64_t>(done * kSteps), "loading weights"); };
  source.warning = [&](const std::string& text) {
    progress.clear();
    fmt::print(stderr, "flashmla: warning: {}\n", text);
  };
  return value_or_usage_error(runner::load_model(source));
}

runner::StepOptions step_options(const std::string& backend, const std::string& form) {
  return {.form = value_or_usage_error(runner::parse_attention_form(form)), .backend = backend};
}

int64_t model_len(const ModelFlags& flags, const runner::LoadedModel& loaded) {
  const int64_t positions = loaded.model->config().max_position;
  if (flags.max_model_len == 0) return std::min(kDefaultModelLen, positions);
  if (flags.max_model_len <= positions) return flags.max_model_len;
  throw UsageError(fmt::format("--max-model-len: got {}; want at most the model's max_position_embeddings, {}",
                               flags.max_model_len, positions));
}

runner::EngineOptions engine_options(const ModelFlags& flags, const runner::LoadedModel& loaded) {
  runner::EngineOptions options;
  options.cache_dtype = loaded.cache_dtype;
  options.page_size = flags.block_size;
  options.max_model_len = model_len(flags, loaded);
  options.max_num_seqs = flags.max_num_seqs;
  options.step = step_options(flags.backend, flags.attention_form);
  return options;
}

std::string backend_line(const runner::LoadedModel& loaded, const runner::StepOptions& options) {
  const KernelChoice choice = value_or_usage_error(runner::explain_model_decode(loaded, options));
  return fmt::format("Using {} MLA back end ({}: {})", choice.backend, choice.kernel, choice.reason);
}

std::vector<int32_t> measurement_prompt(int64_t count, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * 7919 + 1) % vocab));
  return ids;
}

void run_to_end(runner::Engine& engine, const std::function<void(const runner::EngineOutput&)>& take) {
  std::vector<runner::EngineOutput> outputs;
  while (engine.busy() && !interrupted()) {
    if (const Status status = engine.step(outputs); !status.ok()) throw UsageError(status.text());
    for (const runner::EngineOutput& output : outputs) take(output);
  }
}

void catch_interrupt() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // and not SA_RESTART: a read that waits for the user ends
  sigaction(SIGINT, &action, nullptr);
}
bool interrupted() { return interrupt_seen != 0; }

}  // namespace flashmla::cli
