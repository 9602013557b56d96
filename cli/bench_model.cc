// flashmla bench model: tokens a second of a whole model at batch 1, against reading each weight that a token meets
// once.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "ceilings.h"
#include "commands.h"
#include "exit_code.h"
#include "flags.h"
#include "model_flags.h"
#include "run_header.h"
#include "runner/checkpoint/model_size.h"

namespace flashmla::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kExamples =
    R"(One request generates on and on; rounds of it alternate with the loop that only reads memory, since a shared machine's
bandwidth changes within seconds. Roofline: bytes of the weights that a token meets, over that bandwidth.

Example:
  flashmla bench model --model bench/models/deepseek-v2-lite/config.json --random-weights 1 --quantization int8)";

struct BenchModelFlags {
  ModelFlags model;
  int64_t prompt_tokens = 16;
  int64_t rounds = 8;
  int64_t round_tokens = 8;
  std::string json;
  std::string commit;
};

struct Round {
  double tokens_per_second = 0;
  double gbps = 0;  // of the read loop beside it
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

std::vector<Round> measure(const BenchModelFlags& flags, const runner::LoadedModel& loaded, double& prompt_seconds) {
  runner::EngineOptions options = engine_options(flags.model, loaded);
  options.max_num_seqs = 1;
  const auto engine = value_or_usage_error(runner::Engine::make(loaded.model, loaded.tokenizer, options));
  runner::SamplingParams sampling;
  sampling.max_tokens = 2 + (1 + flags.rounds) * flags.round_tokens;
  sampling.ignore_eos = true;
  value_or_usage_error(engine->add(measurement_prompt(flags.prompt_tokens, loaded.model->config().vocab), sampling));
  std::vector<runner::EngineOutput> outputs;
  const auto steps = [&](int64_t count) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) {
      if (const Status status = engine->step(outputs); !status.ok()) throw UsageError(status.text());
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  prompt_seconds = steps(1);
  steps(flags.round_tokens);  // warm-up
  std::vector<Round> rounds;
  for (int64_t r = 0; r < flags.rounds && !interrupted(); ++r) {
    const double gbps = measure_ceilings(loaded.cache_dtype, loaded.model->threads()).value.peak_gbps;
    rounds.push_back({static_cast<double>(flags.round_tokens) / steps(flags.round_tokens), gbps});
  }
  return rounds;
}

int bench_model(const BenchModelFlags& flags) {
  check_file("--json", flags.json);
  const runner::LoadedModel loaded = load(flags.model);
  const runner::ModelConfig& config = loaded.model->config();
  const int64_t context = flags.prompt_tokens + (2 + flags.rounds) * flags.round_tokens;
  if (const int64_t most = model_len(flags.model, loaded); context > most) {
    throw UsageError(fmt::format("--max-model-len: got {}; want at least {} (prompt and all rounds)", most, context));
  }
  catch_interrupt();
  double prompt_seconds = 0;
  const std::vector<Round> rounds = measure(flags, loaded, prompt_seconds);
  if (rounds.empty()) return kExitRight;

  const runner::ModelSize size = runner::model_size(config);
  const bool int8 = flags.model.quantization == "int8";
  const double bytes_per_parameter = static_cast<double>(int8 ? size.all.int8_bytes : size.all.stored_bytes) /
                                     static_cast<double>(size.all.parameters);
  const double token_bytes = static_cast<double>(size.active_parameters) * bytes_per_parameter;
  std::vector<double> rates, bandwidths, shares;
  for (const Round& round : rounds) {
    rates.push_back(round.tokens_per_second);
    bandwidths.push_back(round.gbps);
    shares.push_back(round.tokens_per_second * token_bytes / (round.gbps * 1e9));
  }
  fmt::print("{}\n{} parameters, {:.2f} GB of weights; a token meets {:.2f} GB\n",
             backend_line(loaded, step_options(flags.model.backend, flags.model.attention_form)), size.all.parameters,
             static_cast<double>(int8 ? size.all.int8_bytes : size.all.stored_bytes) / 1e9, token_bytes / 1e9);
  fmt::print("{} prompt tokens in {:.2f} s\n", flags.prompt_tokens, prompt_seconds);
  fmt::print(
      "{:.2f} tok/s, median of {} rounds of {} tokens ({:.2f} .. {:.2f}); read loop {:.1f} GB/s; {:.0f} % of the "
      "roofline\n",
      median(rates), rounds.size(), flags.round_tokens, *std::ranges::min_element(rates),
      *std::ranges::max_element(rates), median(bandwidths), 100 * median(shares));
  if (flags.json.empty()) return kExitRight;
  Json json;
  json["header"] = run_header(flags.commit, loaded.model->threads());
  json["model"] = flags.model.model;
  json["quantization"] = flags.model.quantization;
  json["parameters"] = size.all.parameters;
  json["token_bytes"] = token_bytes;
  json["prompt_tokens"] = flags.prompt_tokens;
  json["prompt_seconds"] = prompt_seconds;
  json["tokens_per_second"] = median(rates);
  json["read_gbps"] = median(bandwidths);
  json["share_of_roofline"] = median(shares);
  for (const Round& round : rounds)
    json["rounds"].push_back({{"tokens_per_second", round.tokens_per_second}, {"read_gbps", round.gbps}});
  write_json(flags.json, json);
  return kExitRight;
}

}  // namespace

void add_bench_model(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand("model", "Tokens a second of a whole model, beside its roofline.");
  command->footer(kExamples);
  const auto flags = std::make_shared<BenchModelFlags>();
  add_model_flags(*command, flags->model);
  add_integer(*command, "--prompt-tokens", flags->prompt_tokens, {1, 1 << 20}, "tokens of the prompt");
  add_integer(*command, "--rounds", flags->rounds, {1, 1000}, "measured rounds");
  add_integer(*command, "--round-tokens", flags->round_tokens, {1, 10000}, "tokens of a round");
  add_text(*command, "--json", flags->json, "FILE", "also write the rounds as JSON");
  add_text(*command, "--commit", flags->commit, "ID", "commit named in the JSON; left out: the one built from");
  command->callback([flags, &action] { action = [flags] { return bench_model(*flags); }; });
}

}  // namespace flashmla::cli
