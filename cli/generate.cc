// flashmla generate: answers of a model to one or more prompts, streamed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "commands.h"
#include "exit_code.h"
#include "flags.h"
#include "model_flags.h"
#include "run_header.h"

namespace flashmla::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kExamples =
    R"(The prompt is put into the model's chat format; --raw leaves it as it is. Several --prompt run as one batch.

Examples:
  flashmla generate --model models/demo --prompt "What is 17 + 25?"
  flashmla generate --model deepseek-ai/DeepSeek-V2-Lite-Chat --quantization int8 \
      --prompt "Write a piece of quicksort code in C++." --max-tokens 512
  flashmla generate --model models/demo --prompt "Sort: 40 12 33" --compare cpu:mqa,cpu:mha,reference
  flashmla generate --model config.json --random-weights 1 --quantization int8 --prompt-tokens 32 --max-tokens 64

Exit codes: 0 right, 1 --compare found different tokens, 2 bad usage, 130 interrupted.)";

struct GenerateFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::vector<std::string> prompts;
  int64_t prompt_tokens = 0;
  bool raw = false;
  bool warmup = false;
  std::string compare;
  std::string json;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::string text;
  std::string finish_reason;
};

struct Run {
  std::vector<Answer> answers;
  double seconds = 0;         // all of it
  double prompt_seconds = 0;  // until the first token of the first answer
  int64_t tokens = 0;
  bool interrupted = false;

  double rate() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

std::vector<std::vector<int32_t>> prompt_ids(const GenerateFlags& flags, const runner::LoadedModel& loaded) {
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& prompt : flags.prompts) {
    if (!loaded.tokenizer)
      throw UsageError("--prompt: got text for a model without a tokenizer; want --prompt-tokens N");
    std::string text = prompt;
    if (!flags.raw) text = value_or_usage_error(loaded.tokenizer->render_chat({{"user", prompt}}, true));
    prompts.push_back(value_or_usage_error(loaded.tokenizer->encode(text)));
  }
  if (flags.prompt_tokens > 0) {
    prompts.push_back(measurement_prompt(flags.prompt_tokens, loaded.model->config().vocab));
  }
  if (prompts.empty()) throw UsageError("--prompt: got none; want at least one (or --prompt-tokens N)");
  return prompts;
}

// Runs the prompts as one batch. `stream`: print the text of a single answer as it comes. `first_line`: printed once
// all prompts are accepted.
Run run(const runner::LoadedModel& loaded, const runner::EngineOptions& options,
        const std::vector<std::vector<int32_t>>& prompts, const runner::SamplingParams& sampling, bool stream,
        const std::string& first_line = {}) {
  const auto engine = value_or_usage_error(runner::Engine::make(loaded.model, loaded.tokenizer, options));
  Run result;
  result.answers.resize(prompts.size());
  for (const std::vector<int32_t>& prompt : prompts) value_or_usage_error(engine->add(prompt, sampling));
  if (!first_line.empty()) fmt::print("{}\n", first_line);
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  run_to_end(*engine, [&](const runner::EngineOutput& output) {
    Answer& answer = result.answers[static_cast<size_t>(output.request)];
    if (result.tokens == 0) result.prompt_seconds = elapsed();
    result.tokens += static_cast<int64_t>(output.tokens.size());
    answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
    answer.text += output.text;
    answer.finish_reason = output.finish_reason;
    if (!stream) return;
    fmt::print("{}", output.text);
    std::fflush(stdout);
  });
  result.seconds = elapsed();
  result.interrupted = interrupted();
  for (Answer& answer : result.answers) {
    if (answer.finish_reason.empty()) answer.finish_reason = "interrupted";
  }
  return result;
}

// A short untimed answer.
void warm_up(const runner::LoadedModel& loaded, const runner::EngineOptions& options,
             const std::vector<std::vector<int32_t>>& prompts) {
  runner::SamplingParams brief;
  brief.max_tokens = 4;
  brief.ignore_eos = true;
  run(loaded, options, {{prompts[0][0]}}, brief, false);
}

struct Variant {
  std::string text;  // "cpu:mqa": back end and form; "reference": any form
  runner::StepOptions step;
};

// Every variant is looked at before the first one runs.
std::vector<Variant> parse_variants(const runner::LoadedModel& loaded, const std::string& list) {
  std::vector<Variant> variants;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string text = list.substr(begin, end - begin);
    if (text.empty()) throw UsageError("--compare: got an empty entry; want BACKEND or BACKEND:FORM in each");
    const size_t colon = text.find(':');
    const runner::StepOptions step =
        step_options(text.substr(0, colon), colon == std::string::npos ? "auto" : text.substr(colon + 1));
    backend_line(loaded, step);
    variants.push_back({text, step});
    begin = end + 1;
  }
  return variants;
}

// What --compare chooses itself, or does not write.
void check_compare(const GenerateFlags& flags) {
  const std::pair<const char*, bool> others[] = {{"--backend", !flags.model.backend.empty()},
                                                 {"--attention-form", flags.model.attention_form != "auto"},
                                                 {"--json", !flags.json.empty()}};
  for (const auto& [name, given] : others) {
    if (given) throw UsageError(fmt::format("{}: got it together with --compare; want one of the two", name));
  }
}

int compare(const GenerateFlags& flags, const runner::LoadedModel& loaded,
            const std::vector<std::vector<int32_t>>& prompts) {
  std::optional<Run> first;
  bool equal = true;
  for (const Variant& variant : parse_variants(loaded, flags.compare)) {
    runner::EngineOptions options = engine_options(flags.model, loaded);
    options.step = variant.step;
    if (flags.warmup) warm_up(loaded, options, prompts);
    const Run result = run(loaded, options, prompts, flags.sampling.params(), false);
    if (result.interrupted) return kExitInterrupted;
    size_t agree = 0;
    for (size_t i = 0; first && i < result.answers.size(); ++i) {
      agree += result.answers[i].tokens == first->answers[i].tokens ? 1 : 0;
    }
    const bool same = !first || agree == result.answers.size();
    equal = equal && same;
    fmt::print("{:<14} {:>6} tokens in {:>7.2f} s  {:>8.1f} tok/s  {}\n", variant.text, result.tokens, result.seconds,
               result.rate(),
               !first ? "compared with"
               : same ? "same tokens"
                      : "DIFFERENT tokens");
    if (!first) first = result;
  }
  return equal ? kExitRight : kExitWrongResult;
}

void write_json(const GenerateFlags& flags, const std::vector<std::vector<int32_t>>& prompts, const Run& result) {
  nlohmann::json answers = nlohmann::json::array();
  for (size_t i = 0; i < result.answers.size(); ++i) {
    const Answer& answer = result.answers[i];
    answers.push_back({{"prompt_tokens", prompts[i].size()},
                       {"tokens", answer.tokens},
                       {"text", answer.text},
                       {"finish_reason", answer.finish_reason}});
  }
  const nlohmann::json root = {{"model", flags.model.model},
                               {"answers", answers},
                               {"generated_tokens", result.tokens},
                               {"seconds", result.seconds},
                               {"first_token_seconds", result.prompt_seconds},
                               {"tokens_per_second", result.rate()}};
  write_file("--json", flags.json, root.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void print_answers(const GenerateFlags& flags, const Run& result, bool streamed) {
  for (size_t i = 0; i < result.answers.size() && !streamed; ++i) {
    if (i < flags.prompts.size()) fmt::print("[{}] {}\n", i + 1, flags.prompts[i]);
    if (i < flags.prompts.size() || !result.answers[i].text.empty()) fmt::print("{}\n", result.answers[i].text);
  }
  if (streamed) fmt::print("\n");
  fmt::print("Generated {} tokens in {:.2f} s ({:.1f} tok/s)\n", result.tokens, result.seconds, result.rate());
}

int generate(const GenerateFlags& flags) {
  if (!flags.compare.empty()) check_compare(flags);
  check_file("--json", flags.json);
  const runner::SamplingParams sampling = flags.sampling.params();
  const runner::LoadedModel loaded = load(flags.model);
  const std::vector<std::vector<int32_t>> prompts = prompt_ids(flags, loaded);
  const runner::EngineOptions options = engine_options(flags.model, loaded);
  catch_interrupt();
  if (!flags.compare.empty()) return compare(flags, loaded, prompts);
  const std::string first_line = backend_line(loaded, options.step);
  if (flags.warmup) warm_up(loaded, options, prompts);
  const bool stream = prompts.size() == 1;
  const Run result = run(loaded, options, prompts, sampling, stream, first_line);
  print_answers(flags, result, stream);
  if (!flags.json.empty()) write_json(flags, prompts, result);
  return result.interrupted ? kExitInterrupted : kExitRight;
}

}  // namespace

void add_generate(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("generate", "Answer prompts with a DeepSeek-architecture model.");
  command->footer(kExamples);
  const auto flags = std::make_shared<GenerateFlags>();
  add_model_flags(*command, flags->model);
  add_texts(*command, "--prompt", flags->prompts, "what to answer (may be repeated)");
  add_integer(*command, "--prompt-tokens", flags->prompt_tokens, {1, 1 << 24},
              "a prompt of this many tokens, for measurements");
  command->add_flag("--raw", flags->raw, "the prompt as it is, without the chat format");
  add_sampling_flags(*command, flags->sampling);
  command->add_flag("--warmup", flags->warmup, "run a short untimed prompt first");
  add_text(*command, "--compare", flags->compare, "LIST",
           "run each of a comma list of BACKEND[:FORM], compare the tokens");
  add_text(*command, "--json", flags->json, "FILE", "write answers and timings");
  command->callback([flags, &action] { action = [flags] { return generate(*flags); }; });
}

}  // namespace flashmla::cli
