#include "demo_model.h"

#include <fmt/format.h>

#include <array>
#include <chrono>

#include "exit_code.h"
#include "model_flags.h"

namespace flashmla::cli {

namespace {

struct Question {
  const char* text;
  const char* answer;
};

constexpr std::array kQuestions = {
    Question{
        "The code of amber is 4821. The code of cedar is 9035. The code of jade is 1177. What is the code of cedar?",
        "9035"},
    Question{"Repeat: kilo wexi gubaso tuce", "kilo wexi gubaso tuce"},
    Question{"Sort: 52 17 33 80", "17 33 52 80"},
    Question{"Count from 17 to 23.", "17 18 19 20 21 22 23"},
    Question{"What is 34 + 58?", "92"},
};

}  // namespace

bool demo_model_answers(const std::string& folder, int threads) {
  ModelFlags flags;
  flags.model = folder;
  flags.threads = threads;
  flags.max_model_len = 512;
  const runner::LoadedModel loaded = load(flags);
  const runner::EngineOptions options = engine_options(flags, loaded);
  const auto engine = value_or_usage_error(runner::Engine::make(loaded.model, loaded.tokenizer, options));
  runner::SamplingParams sampling;
  sampling.max_tokens = 64;
  for (const Question& question : kQuestions) {
    const std::string prompt = value_or_usage_error(loaded.tokenizer->render_chat({{"user", question.text}}, true));
    value_or_usage_error(engine->add(value_or_usage_error(loaded.tokenizer->encode(prompt)), sampling));
  }
  const auto start = std::chrono::steady_clock::now();
  std::array<std::string, kQuestions.size()> answers;
  int64_t tokens = 0;
  run_to_end(*engine, [&](const runner::EngineOutput& output) {
    answers[static_cast<size_t>(output.request)] += output.text;
    tokens += static_cast<int64_t>(output.tokens.size());
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  bool right = true;
  for (size_t i = 0; i < kQuestions.size(); ++i) {
    const bool same = answers[i] == std::string(" ") + kQuestions[i].answer;
    right = right && same;
    fmt::print("   {}\n     {}   {}\n", kQuestions[i].text, answers[i].empty() ? "" : answers[i].substr(1),
               same ? "right" : fmt::format("WRONG, want {}", kQuestions[i].answer));
  }
  fmt::print("   {} tokens in {:.2f} s, five requests in one batch\n", tokens, seconds);
  return right;
}

}  // namespace flashmla::cli
