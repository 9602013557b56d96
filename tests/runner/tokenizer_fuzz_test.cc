// Damaged tokenizer.json files, chat templates and texts: every answer is a result or an error, never a crash or a
// hang.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "runner/tokenizer/chat_template.h"
#include "runner/tokenizer/utf8.h"
#include "tokenizer_files.h"

namespace flashmla::runner {

namespace {

using nlohmann::json;

constexpr uint64_t kSeed = 20261130;

int rounds(int quick) { return std::getenv("FLASHMLA_TEST_FULL") != nullptr ? 50 * quick : quick; }

size_t below(std::mt19937_64& random, size_t bound) { return static_cast<size_t>(random() % bound); }

// Cuts, doubles and swaps pieces, flips bytes, puts in words that mean something.
std::string damaged(std::string text, std::mt19937_64& random, const std::vector<std::string>& words) {
  for (size_t changes = 1 + below(random, 4); changes > 0 && !text.empty(); --changes) {
    const size_t at = below(random, text.size());
    const size_t length = 1 + below(random, 30);
    switch (below(random, 5)) {
      case 0: text.erase(at, length); break;
      case 1: text.insert(below(random, text.size()), text.substr(at, length)); break;
      case 2: text[at] = static_cast<char>(random()); break;
      default: text.insert(at, words[below(random, words.size())]); break;
    }
  }
  return text;
}

// A small file, so that most damage hits structure and not one of thousands of merges.
std::string small_tokenizer_json() {
  json file = json::parse(fixture_text("v3/tokenizer.json"));
  json& merges = file["model"]["merges"];
  merges.erase(merges.begin() + 4, merges.end());
  json vocabulary = json::object();
  for (const auto& [token, id] : file["model"]["vocab"].items()) {
    if (id.get<int>() < 262) vocabulary[token] = id;
  }
  file["model"]["vocab"] = vocabulary;
  return file.dump();
}

TEST(TokenizerFuzz, DamagedFiles) {
  std::mt19937_64 random(kSeed);
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::string file = small_tokenizer_json();
  const std::string config = fixture_text("v3/tokenizer_config.json");
  const std::vector<std::string> words = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "\"",
                                          "null",
                                          "-1",
                                          "1e99",
                                          "\"type\"",
                                          "\"Split\"",
                                          "true",
                                          "99999999999999999999",
                                          "\"Sequence\"",
                                          "(?:",
                                          "\\\\p{L}+",
                                          "[^",
                                          "\xFF",
                                          "{}",
                                          "[[]]"};
  ASSERT_TRUE(Tokenizer::parse(file, config).ok()) << Tokenizer::parse(file, config).status().text();
  int loaded = 0;
  const int count = rounds(800);
  for (int round = 0; round < count; ++round) {
    const bool of_config = round % 4 == 0;
    const auto tokenizer = Tokenizer::parse(of_config ? file : damaged(file, random, words),
                                            of_config ? damaged(config, random, words) : config);
    if (!tokenizer.ok()) {
      EXPECT_FALSE(tokenizer.status().text().empty());
      continue;
    }
    ++loaded;
    const auto ids = tokenizer.value().encode("The <｜User｜> 中文 123\n  e\xCC\x81\xFF");
    if (ids.ok()) {
      EXPECT_TRUE(tokenizer.value().decode(ids.value()).ok());
    }
    (void)tokenizer.value().render_chat({{"user", "x"}}, true);
  }
  EXPECT_GT(loaded, count / 50);
  EXPECT_LT(loaded, count);
}

// Every value of the file replaced by every kind of value, one at a time.
TEST(TokenizerFuzz, WrongTypes) {
  const json file = json::parse(small_tokenizer_json());
  const std::string config = fixture_text("v3/tokenizer_config.json");
  const json kinds[] = {nullptr,      true, -1, 1.5, "x", json::array(), json::object(), json::array({1, "a"}),
                        {{"type", 3}}};
  const json flat = file.flatten();
  std::vector<std::string> paths;
  for (const auto& [path, value] : flat.items()) {
    if (path.find("/vocab/") == std::string::npos) paths.push_back(path);
    for (size_t end = path.rfind('/'); end != std::string::npos && end > 0; end = path.rfind('/', end - 1)) {
      const std::string parent = path.substr(0, end);
      if (std::find(paths.begin(), paths.end(), parent) == paths.end()) paths.push_back(parent);
    }
  }
  ASSERT_GT(paths.size(), 100u);
  for (const std::string& path : paths) {
    for (const json& kind : kinds) {
      json changed = file;
      changed[json::json_pointer(path)] = kind;
      const auto tokenizer = Tokenizer::parse(changed.dump(), config);
      if (tokenizer.ok()) {
        (void)tokenizer.value().encode("a 中 1");
      } else {
        EXPECT_FALSE(tokenizer.status().text().empty()) << path << " " << kind;
      }
    }
  }
}

TEST(TokenizerFuzz, DamagedTemplates) {
  std::mt19937_64 random(kSeed + 1);
  SCOPED_TRACE("seed " + std::to_string(kSeed + 1));
  const std::string sources[] = {fixture_text("v2.jinja"), fixture_text("v3.jinja"), kDeepSeekV2Chat, kDeepSeekV3Chat};
  const std::vector<std::string> words = {"{{",
                                          "}}",
                                          "{%",
                                          "%}",
                                          "-%}",
                                          "{#",
                                          "#}",
                                          "(",
                                          ")",
                                          "[",
                                          "]",
                                          "'",
                                          "\"",
                                          "\\u12",
                                          " if ",
                                          " else ",
                                          " for x in ",
                                          "namespace(",
                                          "range(99999)",
                                          "|tojson",
                                          ".split('')",
                                          "[::-1]",
                                          " ~ ",
                                          " * 99",
                                          "9999999999999999999",
                                          "{% macro f() %}",
                                          "{% endmacro %}",
                                          "{% set x = x %}",
                                          "{{ f() }}",
                                          "- -",
                                          "not ",
                                          " is ",
                                          " in ",
                                          "\xFF",
                                          "**",
                                          "none"};
  const auto variables = nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "</think>b"}],
          "tools": [{"name": "n", "parameters": {"k": [1, 2.5, null]}}], "bos_token": "<s>", "eos_token": "</s>"})");
  int rendered = 0;
  const int count = rounds(4000);
  for (int round = 0; round < count; ++round) {
    const auto parsed = ChatTemplate::parse(damaged(sources[below(random, 4)], random, words));
    if (!parsed.ok()) {
      EXPECT_EQ(parsed.status().text().rfind("chat_template: line ", 0), 0u) << parsed.status().text();
      continue;
    }
    const auto prompt = parsed.value().render(variables);
    if (prompt.ok()) ++rendered;
  }
  EXPECT_GT(rendered, count / 50);
  EXPECT_LT(rendered, count);
}

TEST(TokenizerFuzz, AnyBytes) {
  std::mt19937_64 random(kSeed + 2);
  SCOPED_TRACE("seed " + std::to_string(kSeed + 2));
  for (const char* name : {"v2", "v3"}) {
    const Tokenizer tokenizer = fixture_tokenizer(name);
    for (int round = 0; round < rounds(2000); ++round) {
      std::string bytes;
      for (size_t length = below(random, 60); length > 0; --length) {
        bytes += static_cast<char>(below(random, 3) == 0 ? random() : random() % 128);
      }
      const auto ids = tokenizer.encode(bytes, {.add_bos = false, .match_added_tokens = false});
      ASSERT_TRUE(ids.ok()) << ids.status().text();
      EXPECT_EQ(tokenizer.decode(ids.value()).value(), replace_invalid_utf8(bytes));
    }
  }
}

}  // namespace

}  // namespace flashmla::runner
