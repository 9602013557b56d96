#include "runner/error_text.h"

namespace flashmla::runner {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string in_quotes(const std::string& text) {
  constexpr size_t kMost = 80;
  std::string result = "'";
  for (char c : text.substr(0, kMost)) result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return result + (text.size() > kMost ? "...'" : "'");
}

std::string list_text(const std::vector<std::string>& items, size_t most) {
  std::string text;
  for (size_t i = 0; i < items.size() && i < most; ++i) text += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > most) text += " and " + std::to_string(items.size() - most) + " more";
  return text;
}

}  // namespace flashmla::runner
