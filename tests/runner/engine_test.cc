// Generation on the demonstration model: answers that are right only when attention is, and the engine's rules.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint_files.h"
#include "runner/model/loading.h"

namespace flashmla::runner {
namespace {

const LoadedModel& demo(const std::string& dtype) {
  static std::map<std::string, LoadedModel> loaded;
  if (!loaded.contains(dtype)) {
    Result<LoadedModel> made = load_model({.model = FLASHMLA_DEMO_MODEL, .dtype = dtype, .threads = 2});
    if (!made.ok()) throw std::runtime_error(made.status().text());
    loaded[dtype] = std::move(made).value();
  }
  return loaded[dtype];
}

struct Question {
  std::string task, question, answer;
};

const bool kFull = std::getenv("FLASHMLA_TEST_FULL") != nullptr;

// Every `stride`-th of the held-out questions.
std::vector<Question> questions(int64_t stride) {
  std::ifstream file(std::string(FLASHMLA_FIXTURES) + "/demo_model/questions.json");
  std::vector<Question> list;
  int64_t index = 0;
  for (const auto& entry : nlohmann::json::parse(file)) {
    if (index++ % stride == 0) list.push_back({entry["task"], entry["question"], entry["answer"]});
  }
  return list;
}

std::vector<int32_t> prompt_of(const LoadedModel& loaded, const std::string& question) {
  return loaded.tokenizer->encode(loaded.tokenizer->render_chat({{"user", question}}, true).value()).value();
}

struct Answer {
  std::string text, finish_reason;
  std::vector<int32_t> tokens;
};

std::vector<Answer> ask(const LoadedModel& loaded, const std::vector<Question>& list, const EngineOptions& options,
                        const SamplingParams& sampling = {.max_tokens = 160}) {
  auto engine = Engine::make(loaded.model, loaded.tokenizer, options);
  EXPECT_TRUE(engine.ok()) << engine.status().text();
  for (const Question& question : list) {
    EXPECT_TRUE(engine.value()->add(prompt_of(loaded, question.question), sampling).ok());
  }
  std::vector<Answer> answers(list.size());
  std::vector<EngineOutput> outputs;
  while (engine.value()->busy()) {
    const Status status = engine.value()->step(outputs);
    if (!status.ok()) throw std::runtime_error(status.text());
    for (const EngineOutput& output : outputs) {
      Answer& answer = answers[static_cast<size_t>(output.request)];
      answer.text += output.text;
      answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
      answer.finish_reason = output.finish_reason;
    }
  }
  return answers;
}

EngineOptions options_of(const LoadedModel& loaded) {
  EngineOptions options;
  options.cache_dtype = loaded.cache_dtype;
  options.max_model_len = 2048;
  return options;
}

TEST(DemoModel, AnswersTheHeldOutQuestions) {
  const std::vector<Question> list = questions(1);
  const std::vector<Answer> answers = ask(demo("bf16"), list, options_of(demo("bf16")));
  std::map<std::string, std::pair<int, int>> score;  // task -> right, asked
  for (size_t i = 0; i < list.size(); ++i) {
    score[list[i].task].second += 1;
    score[list[i].task].first += answers[i].text == " " + list[i].answer ? 1 : 0;
    EXPECT_EQ(answers[i].finish_reason, "stop") << list[i].question;
  }
  ASSERT_EQ(list.size(), 200u);
  for (const auto& [task, counts] : score) {
    EXPECT_GE(counts.first, 0.95 * counts.second) << task << ": " << counts.first << " of " << counts.second;
  }
}

TEST(DemoModel, Fp32AnswersAreEqualForEveryFormChunkAndBatch) {
  const std::vector<Question> list = questions(kFull ? 1 : 9);
  const LoadedModel& loaded = demo("fp32");
  std::vector<std::vector<int32_t>> first;
  struct Variant {
    AttentionForm form;
    int64_t chunk, sequences, page;
  };
  for (const Variant& variant : {Variant{AttentionForm::kAuto, 512, 16, 64}, Variant{AttentionForm::kMqa, 100, 3, 16},
                                 Variant{AttentionForm::kMha, 64, 5, 64}, Variant{AttentionForm::kMha, 2048, 1, 1}}) {
    EngineOptions options = options_of(loaded);
    options.step.form = variant.form;
    options.prefill_chunk = variant.chunk;
    options.max_num_seqs = variant.sequences;
    options.page_size = variant.page;
    std::vector<std::vector<int32_t>> tokens;
    for (const Answer& answer : ask(loaded, list, options)) tokens.push_back(answer.tokens);
    if (first.empty()) first = tokens;
    EXPECT_EQ(tokens, first) << "form " << static_cast<int>(variant.form) << ", chunk " << variant.chunk;
  }
}

TEST(DemoModel, AtMostOneBf16AnswerDiffersFromFp32) {
  const std::vector<Question> list = questions(kFull ? 1 : 5);
  const std::vector<Answer> fp32 = ask(demo("fp32"), list, options_of(demo("fp32")));
  const std::vector<Answer> bf16 = ask(demo("bf16"), list, options_of(demo("bf16")));
  int different = 0;
  for (size_t i = 0; i < list.size(); ++i) different += fp32[i].tokens == bf16[i].tokens ? 0 : 1;
  EXPECT_LE(different, 1);
}

TEST(Engine, LengthStopTextsAndStopTokens) {
  const LoadedModel& loaded = demo("bf16");
  const std::vector<Question> count{{"", "Count from 5 to 14.", ""}};
  const EngineOptions options = options_of(loaded);
  EXPECT_EQ(ask(loaded, count, options, {.max_tokens = 64})[0].text, " 5 6 7 8 9 10 11 12 13 14");
  const Answer brief = ask(loaded, count, options, {.max_tokens = 3})[0];
  EXPECT_EQ(brief.tokens.size(), 3u);
  EXPECT_EQ(brief.finish_reason, "length");
  const Answer stopped = ask(loaded, count, options, {.max_tokens = 64, .stop = {"9 1", "8 9 11"}})[0];
  EXPECT_EQ(stopped.text, " 5 6 7 8 ");
  EXPECT_EQ(stopped.finish_reason, "stop");
  const int32_t seven = loaded.tokenizer->encode("7", {.add_bos = false}).value().at(0);
  const Answer before_seven = ask(loaded, count, options, {.max_tokens = 64, .stop_token_ids = {seven}})[0];
  EXPECT_EQ(before_seven.text, " 5 6 ");
  EXPECT_EQ(ask(loaded, count, options, {.max_tokens = 80, .ignore_eos = true})[0].tokens.size(), 80u);
  // What max-model-len leaves, however large the number.
  EXPECT_EQ(ask(loaded, count, options, {.max_tokens = INT64_MAX})[0].text, " 5 6 7 8 9 10 11 12 13 14");
}

TEST(Engine, SamplingFollowsItsSeed) {
  const LoadedModel& loaded = demo("fp32");
  const std::vector<Question> list{{"", "Repeat: bace", ""}, {"", "What is 3 + 4?", ""}};
  SamplingParams sampling{.max_tokens = 40, .temperature = 3, .seed = 7, .ignore_eos = true};
  const auto tokens = [&](const std::vector<Question>& asked) {
    return ask(loaded, asked, options_of(loaded), sampling)[0].tokens;
  };
  const std::vector<int32_t> first = tokens(list);
  EXPECT_EQ(tokens(list), first);
  sampling.seed = 8;
  EXPECT_NE(tokens(list), first);
  sampling.top_k = 1;
  EXPECT_EQ(tokens(list), ask(loaded, list, options_of(loaded), {.max_tokens = 40, .ignore_eos = true})[0].tokens);
}

TEST(Engine, ErrorsNameTheFlag) {
  const LoadedModel& loaded = demo("bf16");
  const auto refused = [](const Status& status, std::initializer_list<const char*> parts) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const char* part : parts) EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
  };
  EngineOptions options = options_of(loaded);
  options.max_model_len = 32;
  options.pages = 1;
  options.page_size = 16;
  refused(Engine::make(loaded.model, loaded.tokenizer, options).status(), {"num-blocks: got 1", "at least 2"});
  options.pages = 0;
  auto engine = Engine::make(loaded.model, loaded.tokenizer, options);
  ASSERT_TRUE(engine.ok());
  refused(engine.value()->add(std::vector<int32_t>(32, 5), {}).status(), {"prompt: got 32", "max-model-len = 32"});
  refused(engine.value()->add({}, {}).status(), {"prompt: got 0"});
  refused(engine.value()->add({100000}, {}).status(), {"prompt token: got 100000"});
  refused(engine.value()->add({5}, {.max_tokens = 0}).status(), {"max_tokens: got 0"});
  refused(engine.value()->add({5}, {.temperature = -1}).status(), {"temperature"});
  refused(engine.value()->add({5}, {.top_p = 0}).status(), {"top_p"});
  options.max_model_len = 1 << 20;
  refused(Engine::make(loaded.model, loaded.tokenizer, options).status(), {"max-model-len", "2048"});
}

// More requests than the cache holds at once wait for their turn; a cancelled one gives its pages back.
TEST(Engine, WaitsForRoomAndCancels) {
  const LoadedModel& loaded = demo("bf16");
  EngineOptions options = options_of(loaded);
  options.max_model_len = 64;
  options.page_size = 16;
  options.pages = 4;
  const std::vector<Question> list(5, {"", "What is 3 + 4?", ""});
  for (const Answer& answer : ask(loaded, list, options, {.max_tokens = 40})) EXPECT_EQ(answer.text, " 7");
  auto engine = Engine::make(loaded.model, loaded.tokenizer, options);
  const std::vector<int32_t> prompt = prompt_of(loaded, list[0].question);
  const int64_t first = engine.value()->add(prompt, {.max_tokens = 40, .ignore_eos = true}).value();
  const int64_t second = engine.value()->add(prompt, {.max_tokens = 40}).value();
  std::vector<EngineOutput> outputs;
  ASSERT_TRUE(engine.value()->step(outputs).ok());
  engine.value()->cancel(first);
  std::string text;
  while (engine.value()->busy()) {
    ASSERT_TRUE(engine.value()->step(outputs).ok());
    for (const EngineOutput& output : outputs) {
      EXPECT_EQ(output.request, second);
      text += output.text;
    }
  }
  EXPECT_EQ(text, " 7");
}

// The demonstration model in a folder of its own, to be damaged.
class CopiedModel : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& entry : std::filesystem::directory_iterator(FLASHMLA_DEMO_MODEL)) {
      std::filesystem::copy(entry.path(), folder_.path() / entry.path().filename());
    }
  }
  TempFolder folder_;
};

TEST_F(CopiedModel, LogitsThatAreNotFiniteAreAnError) {
  const std::string path = (folder_.path() / "model-00002-of-000002.safetensors").string();
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-2, std::ios::end);
    file.write("\xff\x7f", 2);  // NaN in bf16
  }
  const Result<LoadedModel> loaded = load_model({.model = folder_.text(), .threads = 2});
  ASSERT_TRUE(loaded.ok()) << loaded.status().text();
  auto engine = Engine::make(loaded.value().model, loaded.value().tokenizer, options_of(loaded.value()));
  ASSERT_TRUE(engine.value()->add({5, 6, 7}, {.temperature = 1}).ok());
  std::vector<EngineOutput> outputs;
  const Status status = engine.value()->step(outputs);
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.text().find("logits: got "), std::string::npos) << status.text();
}

TEST_F(CopiedModel, ATokenizerThatCannotBeOpenedIsAnError) {
  const std::filesystem::path tokenizer = folder_.path() / "tokenizer.json";
  std::filesystem::remove(tokenizer);
  std::filesystem::create_symlink(tokenizer, tokenizer);  // a loop
  const Result<LoadedModel> loaded = load_model({.model = folder_.text(), .threads = 2});
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.status().text().find("tokenizer.json"), std::string::npos) << loaded.status().text();
}

TEST_F(CopiedModel, ANamedConfigurationIsTheOneThatIsRead) {
  std::filesystem::rename(folder_.path() / "config.json", folder_.path() / "other.json");
  write_text(folder_.path() / "config.json", "{}");
  const Result<LoadedModel> loaded = load_model({.model = (folder_.path() / "other.json").string(), .threads = 2});
  ASSERT_TRUE(loaded.ok()) << loaded.status().text();
}

TEST(LatentCache, MoreThanTheMachineHasNamesTheFlag) {
  const Result<LatentCache> cache =
      LatentCache::make(demo("bf16").model->config(), DType::kBFloat16, 64, int64_t{1} << 31);
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(cache.status().text().find("cache: 2147483648 pages of 64 tokens need "), std::string::npos);
  EXPECT_NE(cache.status().text().find("lower --max-model-len"), std::string::npos) << cache.status().text();
}

TEST(StopText, HoldsBackWhatMayBeginAStopText) {
  StopText stop({"</end>", "ab"});
  EXPECT_EQ(stop.push("x<"), "x");
  EXPECT_EQ(stop.push("/e"), "");
  EXPECT_EQ(stop.push("lse a"), "</else ");
  EXPECT_EQ(stop.push("c"), "ac");
  EXPECT_EQ(stop.push("12</end>3"), "12");
  EXPECT_TRUE(stop.found());
  EXPECT_EQ(stop.push("more"), "");
}

}  // namespace
}  // namespace flashmla::runner
