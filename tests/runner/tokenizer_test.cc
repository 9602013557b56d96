// The tokenizer against ids that the package tokenizers gave (tests/fixtures/tokenizers), and its own rules.
#include "runner/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <thread>

#include "runner/tokenizer/bpe.h"
#include "runner/tokenizer/tokenizer_bytes.h"
#include "runner/tokenizer/tokenizer_regex.h"
#include "runner/tokenizer/utf8.h"
#include "tokenizer_files.h"

namespace flashmla::runner {

namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kNames[] = {"v2", "v3"};

TEST(Tokenizer, IdsEqualTheFrozenOnes) {
  const json vectors = json::parse(fixture_text("vectors.json"));
  ASSERT_GE(vectors["texts"].size(), 400u);
  for (const char* name : kNames) {
    const Tokenizer tokenizer = fixture_tokenizer(name);
    for (const json& line : vectors["texts"]) {
      const auto text = line["text"].get<std::string>();
      const auto ids = line[name].get<std::vector<int32_t>>();
      const auto got = tokenizer.encode(text, {.add_bos = false});
      ASSERT_TRUE(got.ok()) << got.status().text();
      EXPECT_EQ(got.value(), ids) << name << ": " << text;
      const auto back = tokenizer.decode(ids);
      ASSERT_TRUE(back.ok()) << back.status().text();
      EXPECT_EQ(back.value(), text);
    }
  }
}

TEST(Tokenizer, PromptsEqualTheFrozenOnes) {
  const json vectors = json::parse(fixture_text("vectors.json"));
  ASSERT_GE(vectors["chats"].size(), 10u);
  for (const json& line : vectors["chats"]) {
    const Tokenizer tokenizer = fixture_tokenizer(line["template"].get<std::string>());
    const auto got = tokenizer.render_chat_json(line["messages"].dump(), false, line["variables"].dump());
    ASSERT_TRUE(got.ok()) << got.status().text();
    EXPECT_EQ(got.value(), line["prompt"].get<std::string>());
  }
}

TEST(Tokenizer, BeginOfSentenceStandsOnce) {
  const Tokenizer v2 = fixture_tokenizer("v2");
  const Tokenizer v3 = fixture_tokenizer("v3");
  EXPECT_TRUE(v2.adds_bos());
  EXPECT_FALSE(v3.adds_bos());
  const std::string bos = v2.id_to_token(v2.bos_id()).value();
  EXPECT_EQ(v2.encode("a").value(), v2.encode(bos + "a").value());
  EXPECT_EQ(v2.encode("a").value().size(), 2u);
  EXPECT_EQ(v3.encode("a").value().size(), 1u);
  EXPECT_EQ(v3.encode(bos + "a", {.add_bos = true}).value().size(), 2u);
  EXPECT_EQ(v3.encode("", {.add_bos = true, .add_eos = true}).value(),
            (std::vector<int32_t>{v3.bos_id(), v3.eos_id()}));
  EXPECT_GT(v3.encode(bos, {.match_added_tokens = false}).value().size(), 1u);
  const auto prompt = v2.render_chat({{"user", "hi"}}, true);
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(prompt.value(), bos + "User: hi\n\nAssistant:");
}

TEST(Tokenizer, WrongIdsAreNamed) {
  const Tokenizer tokenizer = fixture_tokenizer("v3");
  for (int32_t id : {-1, tokenizer.size(), INT32_MAX, INT32_MIN}) {
    const auto text = tokenizer.decode({1, id});
    ASSERT_FALSE(text.ok());
    EXPECT_THAT(text.status().text(), HasSubstr("ids[1]: got " + std::to_string(id) + "; want the id of a token"));
    EXPECT_FALSE(tokenizer.token_bytes(id));
    EXPECT_FALSE(tokenizer.is_special(id));
    StreamDecoder stream(tokenizer);
    EXPECT_EQ(stream.push(id), "");
  }
}

TEST(Tokenizer, StreamHoldsBackPartsOfCharacters) {
  const Tokenizer tokenizer = fixture_tokenizer("v3");
  const auto byte = [&](int value) {
    return tokenizer.token_to_id(token_of_bytes(std::string(1, static_cast<char>(value)))).value();
  };
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(byte(0xF0)), "");
  EXPECT_EQ(stream.push(byte(0x9F)), "");
  EXPECT_EQ(stream.push(byte(0x91)), "");
  EXPECT_EQ(stream.push(byte(0x8D)), "👍");
  EXPECT_EQ(stream.push(byte(0xE4)), "");
  EXPECT_EQ(stream.push(byte('a')), "\uFFFDa");
  EXPECT_EQ(stream.push(byte(0xE4)), "");
  EXPECT_EQ(stream.push(byte(0xB8)), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, SpecialTokensAreLeftOutOnRequest) {
  const Tokenizer tokenizer = fixture_tokenizer("v3");
  const std::vector<int32_t> ids = {tokenizer.bos_id(), tokenizer.token_to_id("a").value(), tokenizer.eos_id()};
  EXPECT_EQ(tokenizer.decode(ids, {.skip_special = true}).value(), "a");
  StreamDecoder stream(tokenizer, {.skip_special = true});
  std::string text;
  for (int32_t id : ids) text += stream.push(id);
  EXPECT_EQ(text, "a");
}

TEST(Tokenizer, ThreadsShareIt) {
  const Tokenizer tokenizer = fixture_tokenizer("v2");
  const json texts = json::parse(fixture_text("vectors.json"))["texts"];
  std::vector<std::thread> threads;
  std::array<int, 4> wrong{};
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (const json& line : texts) {
        const auto got = tokenizer.encode(line["text"].get<std::string>(), {.add_bos = false});
        count += got.ok() && got.value() == line["v2"].get<std::vector<int32_t>>() ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, (std::array<int, 4>{}));
}

// Processor time, since other work on the machine does not count in it.
double seconds_to_encode(const Tokenizer& tokenizer, const std::string& text) {
  const std::clock_t begin = std::clock();
  const auto ids = tokenizer.encode(text);
  EXPECT_TRUE(ids.ok()) << ids.status().text();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST(Tokenizer, LongRunsTakeNoQuadraticTime) {
  constexpr size_t kBytes = 1 << 18;
  for (const char* name : kNames) {
    const Tokenizer tokenizer = fixture_tokenizer(name);
    for (const char* part : {" ", "a", "\n", "!", "中", "1", " \t", "<", "é "}) {
      std::string text;
      while (text.size() < kBytes) text += part;
      // Quadratic, these are 10^10 steps and more.
      EXPECT_LT(seconds_to_encode(tokenizer, text + "x"), 5) << name << ": " << part;
    }
  }
}

TEST(Tokenizer, PatternsThatExplodeAreErrors) {
  const auto tokenizer = changed_tokenizer([](json& file) {
    json step = {{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}};
    step["pattern"]["Regex"] = "(a+)+$";
    file["pre_tokenizer"]["pretokenizers"].insert(file["pre_tokenizer"]["pretokenizers"].begin(), step);
  });
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().text();
  EXPECT_TRUE(tokenizer.value().encode("aaa").ok());
  const auto ids = tokenizer.value().encode(std::string(60, 'a') + "b");
  ASSERT_FALSE(ids.ok());
  EXPECT_THAT(ids.status().text(), HasSubstr("pattern '(a+)+$': gave up at byte 0 of a text of 61 bytes"));
}

TEST(Tokenizer, LongestAddedTokenCounts) {
  const auto tokenizer = changed_tokenizer([](json& file) {
    for (const auto& [id, content] : {std::pair(800, "<a>"), std::pair(801, "<a><b>"), std::pair(802, "éx")}) {
      file["added_tokens"].push_back({{"id", id}, {"content", content}, {"normalized", id == 802}});
    }
  });
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().text();
  EXPECT_EQ(tokenizer.value().encode("<a><b><a>éx").value(), (std::vector<int32_t>{801, 800, 802}));
  EXPECT_EQ(tokenizer.value().decode({802, 800}).value(), "éx<a>");
}

TEST(TokenizerRegex, LinesEndAtEveryNewline) {
  const auto end = Regex::compile("a$");
  ASSERT_TRUE(end.ok());
  RegexMatcher matcher;
  EXPECT_EQ(matcher.find(end.value(), "ba\na", 0).value().begin, 1u);
  EXPECT_EQ(matcher.find(end.value(), "ba\r\na", 0).value().begin, 4u);
}

// The rewritten \s+$ splits as the plain one does, found by trying every place.
TEST(TokenizerRegex, SpaceAtLineEndsIsFoundOnce) {
  const auto fast = Regex::compile(R"(\s+$)");
  const auto slow = Regex::compile(R"((?:\s)+$)");
  ASSERT_TRUE(fast.ok() && slow.ok());
  RegexMatcher matcher;
  for (int number = 0; number < 3 * 3 * 3 * 3 * 3 * 3 * 3; ++number) {
    std::string text;
    for (int rest = number; text.size() < 7; rest /= 3) text += " \nx"[rest % 3];
    const auto spans = [&](const Regex& regex) {
      std::vector<std::pair<size_t, size_t>> found;
      for (size_t from = 0; from < text.size();) {
        const Span span = matcher.find(regex, text, from).value();
        if (span.begin == std::string_view::npos) break;
        found.emplace_back(span.begin, span.end);
        from = span.end;
      }
      return found;
    };
    ASSERT_EQ(spans(fast.value()), spans(slow.value())) << json(text);
  }
}

TEST(ChatTemplate, RunawaysEnd) {
  const std::string loop = "{% for i in range(99999) %}";
  for (const std::string& source : {loop + loop + "x{% endfor %}{% endfor %}",
                                    "{% set n = namespace(a='ab') %}" + loop + "{% set n.a = n.a ~ n.a %}{% endfor %}",
                                    "{% set n = namespace(a=1) %}" + loop + "{% set n.a = [n.a] %}{% endfor %}",
                                    std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")}) {
    const auto tokenizer =
        Tokenizer::parse(fixture_text("v3/tokenizer.json"), fixture_text("v3/tokenizer_config.json"), source);
    ASSERT_TRUE(tokenizer.ok());
    const auto prompt = tokenizer.value().render_chat({{"user", "x"}}, true);
    ASSERT_FALSE(prompt.ok()) << source;
    EXPECT_THAT(prompt.status().text(), HasSubstr("chat_template: line 1: "));
  }
}

TEST(ChatTemplate, WhatIsNotSupportedIsNamed) {
  const auto tokenizer = Tokenizer::parse(fixture_text("v3/tokenizer.json"), "", "a\n{% include 'x' %}");
  ASSERT_TRUE(tokenizer.ok());  // encoding needs no template
  const auto prompt = tokenizer.value().render_chat({}, true);
  ASSERT_FALSE(prompt.ok());
  EXPECT_EQ(prompt.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(prompt.status().text(),
              HasSubstr("chat_template: line 2: got the tag 'include'; supported here: if, for"));
}

TEST(Tokenizer, UnsupportedKindsAreNamed) {
  struct Case {
    const char* path;
    json value;
    const char* text;
  };
  const Case cases[] = {
      {"/model/type", "WordPiece", "model.type: got '\"WordPiece\"'; supported: BPE"},
      {"/normalizer", {{"type", "NFKC"}}, "normalizer: got 'NFKC'; supported: none"},
      {"/pre_tokenizer",
       {{"type", "Metaspace"}},
       "got type 'Metaspace'; supported: Sequence, Split, Digits, ByteLevel"},
      {"/decoder", {{"type", "WordPiece"}}, "supported: ByteLevel"},
      {"/post_processor", {{"type", "RobertaProcessing"}}, "post_processor: got 'RobertaProcessing'"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", "\\bx"}}, "got '\\b', which PCRE2 reads otherwise"},
  };
  for (const Case& wrong : cases) {
    const auto tokenizer = changed_tokenizer([&](json& file) { file[json::json_pointer(wrong.path)] = wrong.value; });
    ASSERT_FALSE(tokenizer.ok()) << wrong.path;
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kUnsupported);
    EXPECT_THAT(tokenizer.status().text(), HasSubstr(wrong.text));
  }
}

TEST(Utf8, CharactersAreReadAndBrokenOnesReplaced) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(text, code);
    ASSERT_TRUE(is_utf8(text)) << code;
    ASSERT_EQ(utf8_next(text).code, code);
  }
  EXPECT_FALSE(is_utf8("\xED\xA0\x80"));
  EXPECT_FALSE(is_utf8("\xC0\x80"));
  EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80"));
  EXPECT_EQ(replace_invalid_utf8("a\xE4\xB8"
                                 "b\xFF\xF0\x9F\x98"),
            "a\uFFFDb\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // no character begins with ED A0
  EXPECT_EQ(incomplete_utf8_suffix("a\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_suffix("\xE4\xB8\xAD"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("\xED\xA0"), 0u);
  EXPECT_EQ(incomplete_utf8_suffix("\x80\x80"), 0u);
}

TEST(TokenizerBytes, AlphabetIsOneToOne) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    EXPECT_EQ(bytes_of_token(token_of_bytes(bytes)), bytes);
  }
  EXPECT_EQ(token_of_bytes(" a\n"), "ĠaĊ");
  EXPECT_FALSE(bytes_of_token("<｜User｜>"));
}

TEST(TokenizerRegex, SpaceIsWhiteSpaceOfUnicode) {
  const auto space = Regex::compile(R"(\s)");
  const auto other = Regex::compile(R"([\S])");
  ASSERT_TRUE(space.ok() && other.ok());
  RegexMatcher matcher;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(text, code);
    const bool is_space = matcher.find(space.value(), text, 0).value().begin == 0;
    ASSERT_EQ(is_space, is_unicode_space(code)) << code;
    ASSERT_NE(is_space, matcher.find(other.value(), text, 0).value().begin == 0) << code;
  }
}

TEST(Bpe, LowestRankThenLeftmost) {
  BpeModel model;
  for (int byte = 0; byte < 256; ++byte) model.byte_ids[static_cast<size_t>(byte)] = byte;
  model.merges = MergeTable(3);
  model.merges.set('a', 'a', {0, 300});
  model.merges.set('a', 'b', {1, 301});
  model.merges.set(300, 301, {2, 302});
  const auto ids = [&](const char* word) {
    std::vector<int32_t> result;
    BpeWorkspace().encode(model, word, result);
    return result;
  };
  EXPECT_EQ(ids("aaa"), (std::vector<int32_t>{300, 'a'}));
  EXPECT_EQ(ids("aab"), (std::vector<int32_t>{300, 'b'}));
  EXPECT_EQ(ids("aaab"), (std::vector<int32_t>{302}));
  EXPECT_EQ(ids(""), (std::vector<int32_t>{}));
}

}  // namespace

}  // namespace flashmla::runner
