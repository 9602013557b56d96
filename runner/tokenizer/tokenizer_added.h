// Added tokens: contents that are cut out of the raw text before it is split into words.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "flashmla/status.h"

namespace flashmla::runner {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // left out of a decoded text on request
  bool single_word = false;  // only where no letter, digit, mark or underscore stands beside it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // ... after it
  bool normalized = false;   // looked for after, not with, the ones that are not
};

// The value of "added_tokens".
Result<std::vector<AddedToken>> parse_added_tokens(const nlohmann::json& json);

// A stretch of text: an added token, or plain text when `id` is negative.
struct Segment {
  std::string_view text;
  int32_t id = -1;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);
  // `text` (valid UTF-8) in order. At every place the longest token counts.
  std::vector<Segment> split(std::string_view text) const;
  const std::vector<AddedToken>& list() const { return tokens_; }

 private:
  // A tree of bytes; nodes of one parent are linked.
  struct Node {
    int32_t token = -1;  // index into tokens_ that ends here
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    char byte = 0;
  };
  using Tree = std::vector<Node>;
  static int32_t child(const Tree& tree, int32_t node, char byte);
  static void insert(Tree& tree, std::string_view content, int32_t token);
  void split_segment(const Tree& tree, std::string_view text, std::vector<Segment>& segments) const;

  std::vector<AddedToken> tokens_;
  Tree raw_;         // not normalized
  Tree normalized_;  // normalized
};

}  // namespace flashmla::runner
