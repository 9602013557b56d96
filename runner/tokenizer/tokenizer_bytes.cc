#include "runner/tokenizer/tokenizer_bytes.h"

#include "runner/tokenizer/utf8.h"

namespace flashmla::runner {

namespace {

bool is_printable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

std::array<uint32_t, 256> make_characters() {
  std::array<uint32_t, 256> characters{};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) characters[byte] = is_printable(byte) ? byte : next++;
  return characters;
}

constexpr uint32_t kCodes = 0x100 + 68;  // 68 bytes are not printable

std::array<int16_t, kCodes> make_bytes() {
  std::array<int16_t, kCodes> bytes{};
  bytes.fill(-1);
  const auto& characters = byte_characters();
  for (int16_t byte = 0; byte < 256; ++byte) bytes[characters[static_cast<size_t>(byte)]] = byte;
  return bytes;
}

}  // namespace

const std::array<uint32_t, 256>& byte_characters() {
  static const std::array<uint32_t, 256> characters = make_characters();
  return characters;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  static const std::array<int16_t, kCodes> bytes = make_bytes();
  std::string result;
  result.reserve(token.size());
  while (!token.empty()) {
    const Utf8Char next = utf8_next(token);
    if (!next.valid || next.code >= kCodes || bytes[next.code] < 0) return std::nullopt;
    result += static_cast<char>(bytes[next.code]);
    token.remove_prefix(next.bytes);
  }
  return result;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (char byte : bytes) append_utf8(token, byte_characters()[static_cast<uint8_t>(byte)]);
  return token;
}

}  // namespace flashmla::runner
