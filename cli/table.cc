#include "table.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashmla::cli {

namespace {

std::string padded(const std::string& cell, size_t width, Align align) {
  return align == Align::kLeft ? fmt::format("{:<{}}", cell, width) : fmt::format("{:>{}}", cell, width);
}

std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

std::string Table::text(int indent) const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  const std::string margin(static_cast<size_t>(indent), ' ');
  std::string titles = margin;
  std::string rule = margin;
  for (size_t c = 0; c < columns_.size(); ++c) {
    const char* gap = c == 0 ? "" : "  ";
    titles.append(gap).append(padded(columns_[c].title, widths[c], columns_[c].align));
    rule.append(gap).append(widths[c], '-');
  }
  std::string text = fmt::format("{}\n{}\n", without_trailing_blanks(titles), rule);
  for (const auto& row : rows_) {
    std::string line = margin;
    for (size_t c = 0; c < columns_.size(); ++c) {
      line.append(c == 0 ? "" : "  ").append(padded(row[c], widths[c], columns_[c].align));
    }
    text.append(without_trailing_blanks(line)).append("\n");
  }
  return text;
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

std::string time_text(double microseconds) {
  if (microseconds < 1e3) return fmt::format("{:.3g} us", microseconds);
  if (microseconds < 1e6) return fmt::format("{:.3g} ms", microseconds / 1e3);
  return fmt::format("{:.3g} s", microseconds / 1e6);
}

std::string count_text(int64_t count) {
  if (count >= 16384 && count % 1024 == 0) return fmt::format("{}k", count / 1024);
  return fmt::format("{}", count);
}

}  // namespace flashmla::cli
