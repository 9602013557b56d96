// The fixtures of tests/fixtures/tokenizers.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "runner/checkpoint/json_keys.h"
#include "runner/tokenizer/tokenizer.h"

namespace flashmla::runner {

inline std::string tokenizer_fixture(const std::string& name) { return FLASHMLA_TOKENIZER_FIXTURES "/" + name; }

inline std::string fixture_text(const std::string& name) {
  const Result<std::string> text = read_file(tokenizer_fixture(name));
  EXPECT_TRUE(text.ok()) << text.status().text();
  return text.ok() ? text.value() : "";
}

inline Tokenizer fixture_tokenizer(const std::string& name) {
  const Result<Tokenizer> tokenizer = Tokenizer::load(tokenizer_fixture(name));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().text();
  return tokenizer.value();
}

// tokenizer.json of the fixture v3 with `change` applied to its JSON.
template <class Change>
Result<Tokenizer> changed_tokenizer(Change change) {
  nlohmann::json json = nlohmann::json::parse(fixture_text("v3/tokenizer.json"));
  change(json);
  return Tokenizer::parse(json.dump(), fixture_text("v3/tokenizer_config.json"));
}

}  // namespace flashmla::runner
