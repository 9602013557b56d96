// Streaming text up to the first of several stop texts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashmla::runner {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // What may be shown after `text` was added: everything that cannot be the beginning of a stop text. Once one is
  // found, what stands before it, and then nothing.
  std::string push(std::string_view text);
  // What was held back, at the end of the answer.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace flashmla::runner
