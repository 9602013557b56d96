// Texts of errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashmla/status.h"

namespace flashmla::runner {

inline Status invalid(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }
inline Status unsupported(std::string text) { return {StatusCode::kUnsupported, std::move(text)}; }

// "[2048, 576]"
inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// What stands in a file, fit to be printed: cut to 80 bytes, control characters as '?'.
inline std::string in_quotes(const std::string& text) {
  constexpr size_t kMost = 80;
  std::string result = "'";
  for (char c : text.substr(0, kMost)) result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return result + (text.size() > kMost ? "...'" : "'");
}

// "a, b, c": the first `most` and how many more.
inline std::string list_text(const std::vector<std::string>& items, size_t most) {
  std::string text;
  for (size_t i = 0; i < items.size() && i < most; ++i) text += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > most) text += " and " + std::to_string(items.size() - most) + " more";
  return text;
}

}  // namespace flashmla::runner
