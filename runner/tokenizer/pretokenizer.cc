#include "runner/tokenizer/pretokenizer.h"

#include <nlohmann/json.hpp>

#include "runner/error_text.h"
#include "runner/tokenizer/utf8.h"

namespace flashmla::runner {

namespace {

using nlohmann::json;

constexpr int kMostNested = 16;
constexpr size_t kMostSteps = 64;
// GPT-2's, which ByteLevel's use_regex stands for.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Behavior {
  const char* name;
  SplitBehavior value;
};
constexpr Behavior kBehaviors[] = {{"Removed", SplitBehavior::kRemoved},
                                   {"Isolated", SplitBehavior::kIsolated},
                                   {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                   {"MergedWithNext", SplitBehavior::kMergedWithNext},
                                   {"Contiguous", SplitBehavior::kContiguous}};

Status compile_into(const std::string& pattern, SplitStep& step) {
  Result<Regex> regex = Regex::compile(pattern);
  if (!regex.ok()) return {regex.status().code(), "pre_tokenizer: " + regex.status().text()};
  step.regex = std::move(regex).value();
  return {};
}

bool flag(const json& object, const char* key, bool absent) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() ? found->get<bool>() : absent;
}

class StepParser {
 public:
  Status parse(const json& value, int depth) {
    if (depth > kMostNested || steps.size() >= kMostSteps) {
      return unsupported("pre_tokenizer: got more than " + std::to_string(kMostNested) + " nested or " +
                         std::to_string(kMostSteps) + " steps");
    }
    if (!value.is_object() || !value.contains("type") || !value["type"].is_string()) {
      return invalid("pre_tokenizer: got " + std::string(value.type_name()) + "; want an object with a \"type\"");
    }
    const std::string type = value["type"].get<std::string>();
    if (type == "Sequence") return sequence(value, depth);
    if (ends_)
      return unsupported("pre_tokenizer: got " + in_quotes(type) + " after ByteLevel; ByteLevel must be the last");
    if (type == "Split") return split(value);
    if (type == "Digits") return digits(value);
    if (type == "ByteLevel") return byte_level(value);
    return unsupported("pre_tokenizer: got type " + in_quotes(type) +
                       "; supported: Sequence, Split, Digits, ByteLevel");
  }

  bool ends() const { return ends_; }
  std::vector<SplitStep> steps;

 private:
  Status sequence(const json& value, int depth) {
    const auto list = value.find("pretokenizers");
    if (list == value.end() || !list->is_array())
      return invalid("pre_tokenizer: Sequence has no list \"pretokenizers\"");
    for (const json& step : *list) {
      if (Status status = parse(step, depth + 1); !status.ok()) return status;
    }
    return {};
  }

  Status split(const json& value) {
    SplitStep step;
    const auto pattern = value.find("pattern");
    if (pattern == value.end() || !pattern->is_object() || pattern->size() != 1 || !pattern->begin()->is_string()) {
      return invalid("pre_tokenizer: Split's \"pattern\": want {\"Regex\": text} or {\"String\": text}");
    }
    const std::string text = pattern->begin()->get<std::string>();
    if (pattern->begin().key() == "String") {
      if (text.empty())
        return invalid("pre_tokenizer: Split's \"String\": got an empty text; want at least a character");
      step.text = text;
    } else if (pattern->begin().key() == "Regex") {
      if (Status status = compile_into(text, step); !status.ok()) return status;
    } else {
      return unsupported("pre_tokenizer: Split's pattern: got " + in_quotes(pattern->begin().key()) +
                         "; supported: Regex, String");
    }
    step.invert = flag(value, "invert", false);
    if (Status status = behavior(value, step); !status.ok()) return status;
    steps.push_back(std::move(step));
    return {};
  }

  static Status behavior(const json& value, SplitStep& step) {
    const auto found = value.find("behavior");
    const std::string name = found != value.end() && found->is_string() ? found->get<std::string>() : "";
    std::vector<std::string> names;
    for (const Behavior& known : kBehaviors) {
      step.behavior = known.value;
      if (name == known.name) return {};
      names.emplace_back(known.name);
    }
    return unsupported("pre_tokenizer: Split's \"behavior\": got " + in_quotes(name) +
                       "; supported: " + list_text(names, names.size()));
  }

  Status digits(const json& value) {
    SplitStep step;
    step.behavior = flag(value, "individual_digits", false) ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    if (Status status = compile_into(R"(\p{N})", step); !status.ok()) return status;
    steps.push_back(std::move(step));
    return {};
  }

  Status byte_level(const json& value) {
    ends_ = true;
    SplitStep step;
    step.prefix_space = flag(value, "add_prefix_space", true);
    step.has_pattern = flag(value, "use_regex", true);
    if (!step.prefix_space && !step.has_pattern) return {};
    if (step.has_pattern) {
      if (Status status = compile_into(kByteLevelPattern, step); !status.ok()) return status;
    }
    steps.push_back(std::move(step));
    return {};
  }

  bool ends_ = false;
};

// Joins matches and gaps into pieces by one behaviour.
class Joiner {
 public:
  Joiner(SplitBehavior behavior, std::string_view piece, std::vector<std::string_view>& pieces)
      : behavior_(behavior), piece_(piece), pieces_(pieces) {}

  void add(size_t begin, size_t end, bool match) {
    const bool joins = (behavior_ == SplitBehavior::kContiguous && match == previous_) ||
                       (behavior_ == SplitBehavior::kMergedWithPrevious && match && !previous_) ||
                       (behavior_ == SplitBehavior::kMergedWithNext && !match && previous_);
    previous_ = match;
    if (behavior_ == SplitBehavior::kRemoved && match) return;
    if (joins && open_) {
      end_ = end;
      return;
    }
    flush();
    open_ = true;
    begin_ = begin;
    end_ = end;
  }

  void flush() {
    if (open_ && end_ > begin_) pieces_.push_back(piece_.substr(begin_, end_ - begin_));
    open_ = false;
  }

 private:
  SplitBehavior behavior_;
  std::string_view piece_;
  std::vector<std::string_view>& pieces_;
  bool open_ = false;
  bool previous_ = false;
  size_t begin_ = 0;
  size_t end_ = 0;
};

// One match; begin = npos at the end. `from` may be a match's end; an empty match there is passed over.
Result<Span> next_match(const SplitStep& step, std::string_view piece, RegexMatcher& matcher, size_t from) {
  if (step.text.empty()) return matcher.find(step.regex, piece, from);
  const size_t begin = piece.find(step.text, from);
  return Span{begin, begin == std::string_view::npos ? begin : begin + step.text.size()};
}

}  // namespace

Status split_piece(const SplitStep& step, std::string_view piece, RegexMatcher& matcher,
                   std::vector<std::string_view>& pieces) {
  Joiner joiner(step.behavior, piece, pieces);
  size_t done = 0;                                 // all before is handed out
  size_t from = 0;                                 // where the search goes on
  size_t last_match_end = std::string_view::npos;  // an empty match right after a match does not count
  while (from <= piece.size()) {
    const Result<Span> found = next_match(step, piece, matcher, from);
    if (!found.ok()) return found.status();
    const Span match = found.value();
    if (match.begin == std::string_view::npos) break;
    if (match.begin == match.end && match.end == last_match_end) {
      if (from >= piece.size()) break;
      from += utf8_next(piece.substr(from)).bytes;
      continue;
    }
    if (match.begin > done) joiner.add(done, match.begin, step.invert);
    joiner.add(match.begin, match.end, !step.invert);
    done = from = last_match_end = match.end;
  }
  if (done < piece.size()) joiner.add(done, piece.size(), step.invert);
  joiner.flush();
  return {};
}

Result<PreTokenizer> PreTokenizer::parse(const json& value) {
  StepParser parser;
  if (Status status = parser.parse(value, 0); !status.ok()) return status;
  if (!parser.ends()) return unsupported("pre_tokenizer: has no ByteLevel step; supported: byte-level BPE alone");
  PreTokenizer result;
  result.steps_ = std::move(parser.steps);
  return result;
}

Status PreTokenizer::split(std::string_view text, RegexMatcher& matcher, Pieces& pieces) const {
  std::vector<std::string_view> now;
  if (!text.empty()) now.push_back(text);
  std::vector<std::string_view> next;
  for (const SplitStep& step : steps_) {
    next.clear();
    for (std::string_view piece : now) {
      if (step.prefix_space && piece.front() != ' ') {
        piece = pieces.added.emplace_back(1, ' ').append(piece);
      }
      if (!step.has_pattern) {
        next.push_back(piece);
      } else if (Status status = split_piece(step, piece, matcher, next); !status.ok()) {
        return status;
      }
    }
    now.swap(next);
  }
  pieces.views.insert(pieces.views.end(), now.begin(), now.end());
  return {};
}

}  // namespace flashmla::runner
