// Byte-level vocabularies are written with one printable character per byte ("Ġ" for a space). This is that alphabet.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashmla::runner {

// The character that stands for each byte: itself for printable Latin-1, else U+0100 and on in order of the bytes.
const std::array<uint32_t, 256>& byte_characters();

// The bytes that `token` of a vocabulary stands for; nothing when it has a character outside the alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);
// The opposite.
std::string token_of_bytes(std::string_view bytes);

}  // namespace flashmla::runner
