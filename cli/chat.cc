// flashmla chat: a conversation with a model on the terminal.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "commands.h"
#include "exit_code.h"
#include "model_flags.h"

namespace flashmla::cli {

namespace {

constexpr const char* kExamples =
    R"(Type a message and Enter. /reset forgets the conversation; /exit, Ctrl-D or Ctrl-C ends.

Example:
  flashmla chat --model models/demo

Exit codes: 0 right, 2 bad usage, 130 interrupted.)";

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system;
};

// Streams the answer to the conversation so far; the text. An error when the conversation has grown too long.
Result<std::string> answer(const runner::LoadedModel& loaded, runner::Engine& engine,
                           const std::vector<runner::ChatMessage>& messages, const runner::SamplingParams& sampling) {
  const std::string prompt = value_or_usage_error(loaded.tokenizer->render_chat(messages, true));
  const Result<int64_t> added = engine.add(value_or_usage_error(loaded.tokenizer->encode(prompt)), sampling);
  if (!added.ok()) return added.status();
  const auto start = std::chrono::steady_clock::now();
  std::string text;
  int64_t tokens = 0;
  run_to_end(engine, [&](const runner::EngineOutput& output) {
    fmt::print("{}", output.text);
    std::fflush(stdout);
    text += output.text;
    tokens += static_cast<int64_t>(output.tokens.size());
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("\n");
  fmt::print(stderr, "({} tokens in {:.2f} s, {:.1f} tok/s)\n", tokens, seconds, static_cast<double>(tokens) / seconds);
  return text;
}

int chat(const ChatFlags& flags) {
  const runner::SamplingParams sampling = flags.sampling.params();
  const runner::LoadedModel loaded = load(flags.model);
  if (!loaded.tokenizer) throw UsageError("--model: got a model without a tokenizer; want one that can read text");
  const runner::EngineOptions options = engine_options(flags.model, loaded);
  const auto engine = value_or_usage_error(runner::Engine::make(loaded.model, loaded.tokenizer, options));
  fmt::print("{}\n", backend_line(loaded, options.step));
  catch_interrupt();
  std::vector<runner::ChatMessage> messages;
  const auto reset = [&] {
    messages.clear();
    if (!flags.system.empty()) messages.push_back({"system", flags.system});
  };
  reset();
  std::string line;
  while (!interrupted()) {
    fmt::print("> ");
    std::fflush(stdout);
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line.empty()) continue;
    if (line == "/reset") {
      reset();
      continue;
    }
    messages.push_back({"user", line});
    const Result<std::string> text = answer(loaded, *engine, messages, sampling);
    if (text.ok()) {
      messages.push_back({"assistant", text.value()});
    } else {
      messages.pop_back();
      fmt::print(stderr, "flashmla: {}; /reset forgets the conversation\n", text.status().text());
    }
  }
  fmt::print("\n");
  return interrupted() ? kExitInterrupted : kExitRight;
}

}  // namespace

void add_chat(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("chat", "Talk with a DeepSeek-architecture model.");
  command->footer(kExamples);
  const auto flags = std::make_shared<ChatFlags>();
  add_model_flags(*command, flags->model);
  add_sampling_flags(*command, flags->sampling);
  command->add_option("--system", flags->system, "system message at the beginning")->type_name("TEXT");
  command->callback([flags, &action] { action = [flags] { return chat(*flags); }; });
}

}  // namespace flashmla::cli
