#include "runner/tokenizer/utf8.h"

#include <algorithm>

namespace flashmla::runner {

namespace {

struct LeadByte {
  uint8_t bytes;         // of the whole sequence; 0: no sequence begins so
  uint8_t second_least;  // the second byte's range shuts out overlong forms, surrogates and codes above U+10FFFF
  uint8_t second_most;
};

LeadByte lead_byte(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) return {3, uint8_t(byte == 0xE0 ? 0xA0 : 0x80), uint8_t(byte == 0xED ? 0x9F : 0xBF)};
  if (byte < 0xF5) return {4, uint8_t(byte == 0xF0 ? 0x90 : 0x80), uint8_t(byte == 0xF4 ? 0x8F : 0xBF)};
  return {0, 0, 0};
}

}  // namespace

Utf8Char utf8_next(std::string_view text) {
  constexpr uint32_t kReplacementCode = 0xFFFD;
  if (text.empty()) return {};
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const LeadByte lead = lead_byte(at(0));
  if (lead.bytes == 0) return {kReplacementCode, 1, false, false};
  uint32_t code = lead.bytes == 1 ? at(0) : at(0) & (0x7F >> lead.bytes);
  for (uint8_t i = 1; i < lead.bytes; ++i) {
    if (i == text.size()) return {kReplacementCode, i, false, true};
    const uint8_t least = i == 1 ? lead.second_least : 0x80;
    const uint8_t most = i == 1 ? lead.second_most : 0xBF;
    if (at(i) < least || at(i) > most) return {kReplacementCode, i, false, false};
    code = code << 6 | (at(i) & 0x3F);
  }
  return {code, lead.bytes, true, false};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char next = utf8_next(text);
    if (!next.valid) return false;
    text.remove_prefix(next.bytes);
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char next = utf8_next(text);
    result += next.valid ? text.substr(0, next.bytes) : kReplacement;
    text.remove_prefix(next.bytes);
  }
  return result;
}

size_t incomplete_utf8_suffix(std::string_view text) {
  for (size_t bytes = std::min<size_t>(3, text.size()); bytes > 0; --bytes) {
    const Utf8Char next = utf8_next(text.substr(text.size() - bytes));
    if (next.cut && next.bytes == bytes) return bytes;
  }
  return 0;
}

void append_utf8(std::string& text, uint32_t code) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t utf8_length(std::string_view text) {
  size_t count = 0;
  while (!text.empty()) {
    text.remove_prefix(utf8_next(text).bytes);
    ++count;
  }
  return count;
}

bool is_unicode_space(uint32_t code) {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

}  // namespace flashmla::runner
