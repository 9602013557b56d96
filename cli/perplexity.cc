// flashmla perplexity: how well a model predicts a text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "commands.h"
#include "exit_code.h"
#include "flags.h"
#include "model_flags.h"
#include "progress.h"
#include "runner/model/score.h"

namespace flashmla::cli {

namespace {

constexpr const char* kExamples =
    R"(The text is cut into windows of --max-model-len tokens; each token is predicted from those before it in its window.

Example:
  flashmla perplexity --model models/demo --file README.md --max-model-len 1024)";

struct PerplexityFlags {
  ModelFlags model;
  std::string file;
};

int perplexity(const PerplexityFlags& flags) {
  std::error_code error;
  std::ifstream file(flags.file, std::ios::binary);
  if (!file || std::filesystem::is_directory(flags.file, error))
    throw UsageError(fmt::format("--file: got '{}', which cannot be read; want a text file", flags.file));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const runner::LoadedModel loaded = load(flags.model);
  if (!loaded.tokenizer) throw UsageError("--model: got a model without a tokenizer; want one that can read text");
  const auto tokens = value_or_usage_error(loaded.tokenizer->encode(text));
  const int64_t window = model_len(flags.model, loaded);
  runner::ScoreOptions options;
  options.step = step_options(flags.model.backend, flags.model.attention_form);
  options.page_size = flags.model.block_size;
  fmt::print("{}\n", backend_line(loaded, options.step));
  constexpr int64_t kSteps = 100;
  Progress progress(kSteps);
  const auto show = [&](double done) { progress.show(static_cast<int64_t>(done * kSteps), "predicting"); };
  const auto result = value_or_usage_error(runner::text_perplexity(loaded, tokens, window, options, show));
  progress.clear();
  fmt::print("perplexity {:.4f}  ({} tokens predicted, {:.4f} nat each, windows of {} tokens)\n",
             std::exp(result.mean_nll), result.predicted, result.mean_nll, window);
  return kExitRight;
}

}  // namespace

void add_perplexity(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("perplexity", "Measure how well a model predicts a text.");
  command->footer(kExamples);
  const auto flags = std::make_shared<PerplexityFlags>();
  add_model_flags(*command, flags->model);
  add_text(*command, "--file", flags->file, "FILE", "the text, UTF-8")->required();
  command->callback([flags, &action] { action = [flags] { return perplexity(*flags); }; });
}

}  // namespace flashmla::cli
