// The split of a text into words that BPE never crosses, as "pre_tokenizer" of tokenizer.json describes it.
#pragma once

#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "flashmla/status.h"
#include "runner/tokenizer/tokenizer_regex.h"

namespace flashmla::runner {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// One step: every piece is cut at the matches of `regex` (or of the literal `text`).
struct SplitStep {
  std::string text;  // literal; empty: `regex`
  Regex regex;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  bool prefix_space = false;  // a piece that begins with no space gets one first; pieces are cut only with has_pattern
  bool has_pattern = true;
};

// Pieces are views into the text, or into `added` where a space was put in front.
struct Pieces {
  std::vector<std::string_view> views;
  std::deque<std::string> added;
};

class PreTokenizer {
 public:
  // `json`: the value of "pre_tokenizer". Its last step must be ByteLevel.
  static Result<PreTokenizer> parse(const nlohmann::json& json);
  // Appends the words of `text` (valid UTF-8), none of them empty.
  Status split(std::string_view text, RegexMatcher& matcher, Pieces& pieces) const;

 private:
  std::vector<SplitStep> steps_;
};

// Cuts `piece`; each match alternates with what lies between. Appends to `pieces`.
Status split_piece(const SplitStep& step, std::string_view piece, RegexMatcher& matcher,
                   std::vector<std::string_view>& pieces);

}  // namespace flashmla::runner
