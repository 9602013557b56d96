#include "runner/tokenizer/jinja_lexer.h"

#include <algorithm>
#include <string_view>

#include "runner/tokenizer/jinja_value.h"
#include "runner/tokenizer/utf8.h"

namespace flashmla::runner::jinja {

namespace {

using Kind = Token::Kind;

constexpr std::string_view kOperators[] = {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "|",
                                           "<",  ">",  "=",  "(",  ")",  "[",  "]", "{", "}", ",", ".", ":"};

bool is_name_begin(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// One kind of line end, and none at the end of the template.
std::string normalized(const std::string& source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    const bool crlf = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!crlf) text += source[i] == '\r' ? '\n' : source[i];
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

size_t space_after(std::string_view text, size_t from) {
  size_t end = from;
  while (end < text.size()) {
    const Utf8Char next = utf8_next(text.substr(end));
    if (!is_unicode_space(next.code)) break;
    end += next.bytes;
  }
  return end;
}

std::string_view without_space_at_end(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_next(text.substr(at));
    at += next.bytes;
    if (!is_unicode_space(next.code)) end = at;
  }
  return text.substr(0, end);
}

class Lexer {
 public:
  explicit Lexer(const std::string& source) : source_(normalized(source)), text_(source_) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) text_and_tag();
    add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw TemplateError("line " + std::to_string(line_) + ": " + what);
  }
  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  bool follows(std::string_view symbol) const { return text_.substr(at_, symbol.size()) == symbol; }
  void advance(size_t to) {
    line_ += static_cast<int>(
        std::count(text_.begin() + static_cast<ptrdiff_t>(at_), text_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    if (to > at_) line_begins_ = text_[to - 1] == '\n';
    at_ = to;
  }

  size_t next_tag() const {
    size_t tag = text_.find('{', at_);
    while (tag != std::string_view::npos &&
           (tag + 1 >= text_.size() || std::string_view("{%#").find(text_[tag + 1]) == std::string_view::npos)) {
      tag = text_.find('{', tag + 1);
    }
    return std::min(tag, text_.size());
  }

  void text_and_tag() {
    const size_t tag = next_tag();
    std::string_view plain = text_.substr(at_, tag - at_);
    const char kind = tag < text_.size() ? text_[tag + 1] : ' ';
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
    if (tag < text_.size() && sign == '-') {
      plain = without_space_at_end(plain);
    } else if (tag < text_.size() && sign != '+' && kind != '{') {
      const size_t newline = plain.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_begins_) && space_after(plain, line) == plain.size()) plain = plain.substr(0, line);
    }
    if (!plain.empty()) add(Kind::kText, std::string(plain));
    advance(tag);
    if (tag == text_.size()) return;
    advance(tag + (sign == '-' || sign == '+' ? 3 : 2));
    if (kind == '#') return comment();
    add(kind == '{' ? Kind::kPrintBegin : Kind::kBlockBegin, "");
    inside(kind == '{' ? "}}" : "%}");
  }

  // Past the end of a tag and the white space that goes with it. Without trim_blocks' newline for {{ }}.
  void end_tag(std::string_view close, size_t signs) {
    const char sign = signs == 0 ? ' ' : text_[at_];
    advance(at_ + signs + close.size());
    if (sign == '-') {
      advance(space_after(text_, at_));
    } else if (sign != '+' && close != "}}" && at_ < text_.size() && text_[at_] == '\n') {
      advance(at_ + 1);
    }
  }

  void comment() {
    const size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) fail("comment without '#}'");
    const size_t signs = end > at_ && (text_[end - 1] == '-' || text_[end - 1] == '+') ? 1 : 0;
    advance(end - signs);
    end_tag("#}", signs);
  }

  void inside(std::string_view close) {
    open_.clear();
    while (true) {
      while (at_ < text_.size() && is_space(text_[at_])) advance(at_ + 1);
      if (at_ >= text_.size()) fail("tag without '" + std::string(close) + "'");
      if (open_.empty()) {
        const bool sign = text_[at_] == '-' || (text_[at_] == '+' && close == "%}");
        if (text_.substr(at_ + (sign ? 1 : 0), 2) == close) {
          add(close == "}}" ? Kind::kPrintEnd : Kind::kBlockEnd, "");
          return end_tag(close, sign ? 1 : 0);
        }
      }
      word();
    }
  }

  void word() {
    const char c = text_[at_];
    if (c == '\'' || c == '"') return string(c);
    if (is_digit(c)) return number();
    if (is_name_begin(c)) {
      size_t end = at_;
      while (end < text_.size() && (is_name_begin(text_[end]) || is_digit(text_[end]))) ++end;
      add(Kind::kName, std::string(text_.substr(at_, end - at_)));
      return advance(end);
    }
    for (std::string_view symbol : kOperators) {
      if (!follows(symbol)) continue;
      balance(symbol.front());
      add(Kind::kOperator, std::string(symbol));
      return advance(at_ + symbol.size());
    }
    fail("got '" + std::string(text_.substr(at_, utf8_next(text_.substr(at_)).bytes)) + "' in a tag");
  }

  // A '}}' that closes brackets is no end of the tag.
  void balance(char symbol) {
    if (symbol == '(' || symbol == '[' || symbol == '{') open_ += symbol;
    if (symbol != ')' && symbol != ']' && symbol != '}') return;
    const char partner = symbol == ')' ? '(' : symbol == ']' ? '[' : '{';
    if (open_.empty() || open_.back() != partner) fail(std::string("got '") + symbol + "' with nothing to close");
    open_.pop_back();
  }

  size_t digits_end(size_t from) const {
    while (from < text_.size() && (is_digit(text_[from]) || text_[from] == '_')) ++from;
    return from;
  }

  void number() {
    constexpr size_t kMostDigits = 18;  // of 64 bits
    size_t end = digits_end(at_);
    bool real = false;
    if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      real = true;
      end = digits_end(end + 1);
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const size_t sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 1 : 0;
      if (digits_end(end + 1 + sign) > end + 1 + sign) {
        real = true;
        end = digits_end(end + 1 + sign);
      }
    }
    std::string digits(text_.substr(at_, end - at_));
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    if (!real && digits.size() > kMostDigits) {
      fail("got the number " + digits.substr(0, kMostDigits) + "...; want at most " + std::to_string(kMostDigits) +
           " digits");
    }
    add(real ? Kind::kFloat : Kind::kInteger, digits);
    advance(end);
  }

  void string(char quote) {
    std::string value;
    size_t at = at_ + 1;
    while (at < text_.size() && text_[at] != quote) {
      if (text_[at] == '\\' && at + 1 < text_.size()) {
        at = escape(at + 1, value);
      } else {
        value += text_[at++];
      }
    }
    if (at >= text_.size()) fail("text without its closing quote");
    add(Kind::kString, value);
    advance(at + 1);
  }

  // Python's escapes; `at` is behind the backslash.
  size_t escape(size_t at, std::string& value) {
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char letter = text_[at];
    if (const size_t known = kLetters.find(letter); known != std::string_view::npos) {
      value += kMeanings[known];
      return at + 1;
    }
    if (letter == '\n') return at + 1;
    const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    if (digits == 0) {
      if (is_digit(letter) || letter == 'N')
        fail(std::string("got '\\") + letter + "' in a text; want \\xHH or \\uHHHH");
      value += '\\';
      return at;
    }
    const std::string hex(text_.substr(at + 1, digits));
    if (hex.size() != digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      fail(std::string("got '\\") + letter + hex + "' in a text; want " + std::to_string(digits) +
           " hexadecimal digits");
    }
    const unsigned long code = std::stoul(hex, nullptr, 16);
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      fail("got '\\" + (letter + hex) + "', which is no character");
    append_utf8(value, static_cast<uint32_t>(code));
    return at + 1 + digits;
  }

  std::string source_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;
  std::string open_;  // brackets of this tag
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(const std::string& source) { return Lexer(source).run(); }

}  // namespace flashmla::runner::jinja
