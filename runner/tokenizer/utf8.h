// UTF-8. Ill-formed input is read as Python's bytes.decode("utf-8", errors="replace") reads it: every maximal part of a
// sequence that could still have become a character, or else every single byte, becomes one U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace flashmla::runner {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Char {
  uint32_t code = 0;  // U+FFFD when not valid
  uint8_t bytes = 0;  // that it takes; 0 only at the end of the text
  bool valid = true;  // a whole, well-formed character
  bool cut = false;   // not valid, but the text ends where the sequence could still have gone on
};
Utf8Char utf8_next(std::string_view text);

bool is_utf8(std::string_view text);
std::string replace_invalid_utf8(std::string_view text);
// Bytes at the end of `text` that begin a character whose rest is still to come; 0..3.
size_t incomplete_utf8_suffix(std::string_view text);
void append_utf8(std::string& text, uint32_t code);
size_t utf8_length(std::string_view text);  // characters

// White_Space of Unicode.
bool is_unicode_space(uint32_t code);

}  // namespace flashmla::runner
