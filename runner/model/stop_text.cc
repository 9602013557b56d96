#include "runner/model/stop_text.h"

#include <algorithm>
#include <utility>

namespace flashmla::runner {

std::string StopText::push(std::string_view text) {
  if (found_) return {};
  held_ += text;
  size_t first = std::string::npos;
  size_t keep = 0;  // bytes at the end that may begin a stop text
  for (const std::string& stop : stops_) {
    if (stop.empty()) continue;
    first = std::min(first, held_.find(stop));
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) keep = length;
    }
  }
  if (first != std::string::npos) {
    found_ = true;
    return std::exchange(held_, {}).substr(0, first);
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopText::finish() { return std::exchange(held_, {}); }

}  // namespace flashmla::runner
