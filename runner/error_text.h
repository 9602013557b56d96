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
std::string shape_text(const std::vector<int64_t>& shape);
// What stands in a file, fit to be printed: cut to 80 bytes, control characters as '?'.
std::string in_quotes(const std::string& text);
// "a, b, c": the first `most` and how many more.
std::string list_text(const std::vector<std::string>& items, size_t most);

}  // namespace flashmla::runner
