// Text tables with aligned columns, and numbers with units.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashmla::cli {

enum class Align { kLeft, kRight };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // As many cells as columns.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Title line, a rule, and one line a row; `indent` spaces before each.
  std::string text(int indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

std::string bytes_text(double bytes);        // "1.50 MiB": memory sizes
std::string time_text(double microseconds);  // "812 us", "4.21 ms", "1.30 s"
std::string count_text(int64_t count);       // "4096", "16k", "32k": multiples of 1024 from 16k on

}  // namespace flashmla::cli
