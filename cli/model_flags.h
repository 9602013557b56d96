// Flags that the subcommands which run a model share, and the model that they name.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runner/model/engine.h"
#include "runner/model/loading.h"

namespace flashmla::cli {

struct ModelFlags {
  std::string model;
  std::string backend;
  std::string attention_form = "auto";
  std::string dtype = "auto";
  std::string quantization;
  int64_t random_seed = -1;
  int64_t threads = 0;
  int64_t max_model_len = 0;  // 0: the model's positions, at most 4096
  int64_t block_size = 64;
  int64_t max_num_seqs = 16;
};
void add_model_flags(CLI::App& command, ModelFlags& flags);

struct SamplingFlags {
  int64_t max_tokens = 256;
  double temperature = 0;
  double top_p = 1;
  int64_t top_k = 0;
  int64_t seed = 0;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  bool ignore_eos = false;

  runner::SamplingParams params() const;  // throws UsageError
};
void add_sampling_flags(CLI::App& command, SamplingFlags& flags);

// Loads with a progress bar; warnings go to stderr. Errors become UsageErrors.
runner::LoadedModel load(const ModelFlags& flags);

runner::StepOptions step_options(const std::string& backend, const std::string& form);
// Tokens of a request. More than the model has positions is a UsageError.
int64_t model_len(const ModelFlags& flags, const runner::LoadedModel& loaded);
runner::EngineOptions engine_options(const ModelFlags& flags, const runner::LoadedModel& loaded);

// "Using cpu MLA back end (kernel ..., attention form auto: ...)"
std::string backend_line(const runner::LoadedModel& loaded, const runner::StepOptions& options);

// What shells report of a program that Ctrl-C ended.
constexpr int kExitInterrupted = 130;

// Token ids for measurements: `count` different ones, as far as the vocabulary goes.
std::vector<int32_t> measurement_prompt(int64_t count, int64_t vocab);
// Steps until no request is left, or Ctrl-C; `take` gets what each step gives. Errors become UsageErrors.
void run_to_end(runner::Engine& engine, const std::function<void(const runner::EngineOutput&)>& take);

// Turns Ctrl-C into a flag that loops look at, and ends a read that waits; the second one ends the program as usual.
void catch_interrupt();
bool interrupted();

}  // namespace flashmla::cli
