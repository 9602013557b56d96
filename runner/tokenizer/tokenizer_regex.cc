#include "runner/tokenizer/tokenizer_regex.h"

#include "runner/tokenizer/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "runner/error_text.h"

namespace flashmla::runner {

namespace {

// Oniguruma's \s is White_Space; PCRE2's also has U+180E. As ranges, since \p{White_Space} needs PCRE2 10.40.
constexpr const char* kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr const char* kNoSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    // A tail of a run of spaces cannot end a line when the whole run cannot: trying each would take quadratic time.
    if (pattern_ == R"(\s+$)") return std::string("(?<![") + kSpace + "])[" + kSpace + "]+$";
    while (at_ < pattern_.size() && error_.empty()) {
      if (pattern_[at_] == '\\') {
        escape();
      } else if (in_class_) {
        in_class();
      } else {
        outside();
      }
    }
    if (!error_.empty()) {
      return unsupported("pattern " + in_quotes(std::string(pattern_)) + ": got " + error_ +
                         ", which PCRE2 reads otherwise than Oniguruma; want a pattern without it");
    }
    return result_;
  }

 private:
  bool follows(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  void copy(size_t bytes) {
    result_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }
  void replace(size_t bytes, const std::string& text) {
    result_ += text;
    at_ += bytes;
  }
  void space(const char* ranges) { replace(2, in_class_ ? ranges : std::string("[") + ranges + "]"); }

  void escape() {
    if (at_ + 1 >= pattern_.size()) return copy(1);  // PCRE2 says what is wrong
    const char kind = pattern_[at_ + 1];
    switch (kind) {
      case 's': return space(kSpace);
      case 'S': return space(kNoSpace);
      case 'v': return replace(2, R"(\x{b})");
      case 'u':
        return replace(std::min<size_t>(6, pattern_.size() - at_),
                       R"(\x{)" + std::string(pattern_.substr(at_ + 2, 4)) + "}");
      case 'w':
      case 'W':
      case 'b':
      case 'B':
      case 'h':
      case 'H':
      case 'R':
      case 'X':
      case 'K':
      case 'G':
      case 'y':
      case 'Y':
      case 'N':
      case 'O':
      case 'M':
      case 'C':
      case 'Q':
      case 'E': error_ = std::string("'\\") + kind + "'"; return;
      default: break;
    }
    const size_t close = pattern_.find('}', at_);
    copy(at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{' && close != std::string_view::npos
             ? close + 1 - at_  // \p{L}
             : 2);
  }

  void in_class() {
    if (pattern_[at_] == '[') {
      error_ = "'[' inside [...]";
    } else if (follows("&&")) {
      error_ = "'&&' inside [...]";
    } else if (pattern_[at_] == ']' && at_ > class_begin_) {
      in_class_ = false;
      copy(1);
    } else {
      copy(1);
    }
  }

  void outside() {
    if (pattern_[at_] == '[') {
      in_class_ = true;
      copy(follows("[^") ? 2 : 1);
      class_begin_ = at_;  // a ']' here is an ordinary character
    } else if (follows("(?")) {
      group();
    } else if (pattern_[at_] == '{') {
      braces();
    } else {
      copy(1);
    }
  }

  // {,n} is no repeat in PCRE2; {n,m}+ and {n}? repeat the repeat in Ruby, and change its greed in PCRE2.
  void braces() {
    const size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) return copy(1);
    const std::string_view inside = pattern_.substr(at_ + 1, close - at_ - 1);
    const bool repeats = !inside.empty() && inside.find_first_not_of("0123456789,") == std::string_view::npos;
    const char after = close + 1 < pattern_.size() ? pattern_[close + 1] : ' ';
    const bool exact = inside.find(',') == std::string_view::npos;
    if (repeats && (inside.front() == ',' || after == '+' || (after == '?' && exact))) {
      error_ = "'" + std::string(pattern_.substr(at_, close + 2 - at_)) + "'";
      return;
    }
    copy(1);
  }

  // Option letters mean other things: only i is the same in both.
  void group() {
    const size_t letters = pattern_.find_first_of(":)=!<>#|&~", at_ + 2);
    const std::string_view options =
        pattern_.substr(at_ + 2, letters == std::string_view::npos ? std::string_view::npos : letters - at_ - 2);
    const bool is_options = options.find_first_not_of("imsxWDSPaun-") == std::string_view::npos;
    if (is_options && options.find_first_not_of("i-") != std::string_view::npos) {
      error_ = "'(?" + std::string(options) + "'";
    } else {
      copy(2);
    }
  }

  std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  size_t class_begin_ = 0;
  std::string result_;
  std::string error_;
};

std::string pcre2_text(int code) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(code, text, sizeof(text)) < 0 ? "error " + std::to_string(code)
                                                               : reinterpret_cast<const char*>(text);
}

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

Result<std::string> translate_regex(std::string_view pattern) { return Translator(pattern).run(); }

Result<Regex> Regex::compile(const std::string& pattern) {
  if (!is_utf8(pattern)) return invalid("pattern " + in_quotes(pattern) + ": got invalid UTF-8");
  const Result<std::string> translated = translate_regex(pattern);
  if (!translated.ok()) return translated.status();
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) return Status(StatusCode::kOutOfMemory, "pattern " + in_quotes(pattern) + ": no memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  // Ruby's $ and ^ stand at every line's end and begin.
  pcre2_code* code = pcre2_compile(bytes_of(translated.value()), translated.value().size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, context.get());
  if (code == nullptr) return invalid("pattern " + in_quotes(pattern) + ": " + pcre2_text(error));
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT, the interpreter runs
  Regex regex;
  regex.pattern_ = pattern;
  regex.code_ = std::shared_ptr<void>(code, [](void* memory) { pcre2_code_free(static_cast<pcre2_code*>(memory)); });
  return regex;
}

struct RegexMatcher::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);  // the whole match; groups are not asked for
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr);  // bytes: at first, at most

  State() {
    if (context != nullptr && stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

RegexMatcher::RegexMatcher() : state_(std::make_shared<State>()) {}

Result<Span> RegexMatcher::find(const Regex& regex, std::string_view text, size_t from) {
  if (state_->data == nullptr || state_->context == nullptr) {
    return Status(StatusCode::kOutOfMemory, "pattern " + in_quotes(regex.pattern()) + ": no memory to match it");
  }
  // In proportion to the text: long runs of one character class take a step each, nested repeats take 2^n.
  constexpr uint64_t kLeastSteps = 10'000'000;
  const uint64_t steps = std::min<uint64_t>(kLeastSteps + 64 * text.size(), UINT32_MAX);
  pcre2_set_match_limit(state_->context, static_cast<uint32_t>(steps));
  const auto* code = static_cast<const pcre2_code*>(regex.code_.get());
  const int count =
      pcre2_match(code, bytes_of(text), text.size(), from, PCRE2_NO_UTF_CHECK, state_->data, state_->context);
  if (count == PCRE2_ERROR_NOMATCH) return Span{std::string_view::npos, std::string_view::npos};
  if (count < 0) {
    return invalid("pattern " + in_quotes(regex.pattern()) + ": gave up at byte " + std::to_string(from) +
                   " of a text of " + std::to_string(text.size()) + " bytes: " + pcre2_text(count));
  }
  const size_t* offsets = pcre2_get_ovector_pointer(state_->data);
  if (offsets[0] > offsets[1] || offsets[0] < from) {
    return unsupported("pattern " + in_quotes(regex.pattern()) + ": got a match that begins before the search (\\K)");
  }
  return Span{offsets[0], offsets[1]};
}

}  // namespace flashmla::runner
