#include "runner/tokenizer/tokenizer_added.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runner/error_text.h"
#include "runner/tokenizer/tokenizer_regex.h"
#include "runner/tokenizer/utf8.h"

namespace flashmla::runner {

namespace {

using nlohmann::json;

size_t spaces_at_begin(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Utf8Char next = utf8_next(text.substr(bytes));
    if (!is_unicode_space(next.code)) break;
    bytes += next.bytes;
  }
  return bytes;
}

// Where the last character begins.
size_t last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

size_t spaces_at_end(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t begin = last_character(text.substr(0, end));
    if (!is_unicode_space(utf8_next(text.substr(begin)).code)) break;
    end = begin;
  }
  return text.size() - end;
}

// Letters, marks, digits, connectors and the joiners, as the Rust crate regex reads \w.
bool begins_with_word(std::string_view text) {
  static const Result<Regex> word = Regex::compile(R"(^[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}])");
  RegexMatcher matcher;
  const Result<Span> found = matcher.find(word.value(), text.substr(0, utf8_next(text).bytes), 0);
  return found.ok() && found.value().begin == 0;
}

bool ends_with_word(std::string_view text) { return begins_with_word(text.substr(last_character(text))); }

Status read_token(const json& value, AddedToken& token) {
  const auto wrong = [&](const char* what) {
    return invalid("added_tokens: got " + in_quotes(value.dump(-1, ' ', false, json::error_handler_t::replace)) +
                   "; want " + what);
  };
  if (!value.is_object()) return wrong("an object");
  const auto id = value.find("id");
  const auto content = value.find("content");
  if (id == value.end() || !id->is_number_integer()) return wrong("an integer \"id\"");
  if (content == value.end() || !content->is_string()) return wrong("a text \"content\"");
  if (!id->is_number_unsigned() || id->get<uint64_t>() > INT32_MAX) return wrong("an \"id\" of 0 .. 2147483647");
  token.id = id->get<int32_t>();
  token.content = content->get<std::string>();
  const auto flag = [&](const char* key, bool absent) {
    const auto found = value.find(key);
    return found != value.end() && found->is_boolean() ? found->get<bool>() : absent;
  };
  token.special = flag("special", false);
  token.single_word = flag("single_word", false);
  token.lstrip = flag("lstrip", false);
  token.rstrip = flag("rstrip", false);
  token.normalized = flag("normalized", !token.special);
  return {};
}

}  // namespace

Result<std::vector<AddedToken>> parse_added_tokens(const json& list) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  if (!list.is_array()) return invalid("added_tokens: got " + std::string(list.type_name()) + "; want a list");
  for (const json& value : list) {
    AddedToken token;
    if (Status status = read_token(value, token); !status.ok()) return status;
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), raw_(1), normalized_(1) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    insert(tokens_[i].normalized ? normalized_ : raw_, tokens_[i].content, static_cast<int32_t>(i));
  }
}

int32_t AddedTokens::child(const Tree& tree, int32_t node, char byte) {
  int32_t at = tree[static_cast<size_t>(node)].first_child;
  while (at >= 0 && tree[static_cast<size_t>(at)].byte != byte) at = tree[static_cast<size_t>(at)].next_sibling;
  return at;
}

void AddedTokens::insert(Tree& tree, std::string_view content, int32_t token) {
  int32_t node = 0;
  for (char byte : content) {
    int32_t next = child(tree, node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(tree.size());
      tree.push_back({-1, -1, tree[static_cast<size_t>(node)].first_child, byte});
      tree[static_cast<size_t>(node)].first_child = next;
    }
    node = next;
  }
  tree[static_cast<size_t>(node)].token = token;
}

void AddedTokens::split_segment(const Tree& tree, std::string_view text, std::vector<Segment>& segments) const {
  size_t done = 0;
  size_t at = 0;
  while (at < text.size()) {
    int32_t found = -1;
    size_t end = at;
    int32_t node = 0;
    for (size_t i = at; i < text.size() && (node = child(tree, node, text[i])) >= 0; ++i) {
      if (tree[static_cast<size_t>(node)].token < 0) continue;
      found = tree[static_cast<size_t>(node)].token;
      end = i + 1;
    }
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    size_t begin = at;
    at = end;
    if (token.single_word && ((begin > 0 && ends_with_word(text.substr(0, begin))) ||
                              (end < text.size() && begins_with_word(text.substr(end))))) {
      continue;
    }
    if (token.lstrip) begin -= spaces_at_end(text.substr(0, begin));
    if (token.rstrip) end += spaces_at_begin(text.substr(end));
    begin = std::max(begin, done);  // the token before may have taken the spaces
    end = std::max(end, begin);
    if (begin > done) segments.push_back({text.substr(done, begin - done), -1});
    segments.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), -1});
}

std::vector<Segment> AddedTokens::split(std::string_view text) const {
  std::vector<Segment> segments;
  if (tokens_.empty()) {
    segments.push_back({text, -1});
    return segments;
  }
  split_segment(raw_, text, segments);
  std::vector<Segment> result;
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      result.push_back(segment);
    } else {
      split_segment(normalized_, segment.text, result);
    }
  }
  return result;
}

}  // namespace flashmla::runner
