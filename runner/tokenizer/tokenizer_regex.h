// A regular expression of tokenizer.json, written for Oniguruma (Ruby's syntax), run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "flashmla/status.h"

namespace flashmla::runner {

// The same expression in PCRE2's syntax. What the two engines read differently is translated (\s, \S, \v, \uHHHH) or
// refused by name.
Result<std::string> translate_regex(std::string_view pattern);

struct Span {
  size_t begin = 0;
  size_t end = 0;
};

// Compiled; shared by all threads.
class Regex {
 public:
  static Result<Regex> compile(const std::string& pattern);
  const std::string& pattern() const { return pattern_; }

 private:
  friend class RegexMatcher;
  std::string pattern_;
  std::shared_ptr<void> code_;  // pcre2_code; not written to
};

// The memory that one thread needs to match.
class RegexMatcher {
 public:
  RegexMatcher();
  // The first match in `text` (valid UTF-8) at or after `from`; begin = npos when there is none. An error when the
  // search exceeds PCRE2's limits.
  Result<Span> find(const Regex& regex, std::string_view text, size_t from);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace flashmla::runner
