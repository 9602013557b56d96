// A chat template as text and tags, each tag as words; white space is cut as Jinja does with trim_blocks and
// lstrip_blocks, which is how transformers renders chat templates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashmla::runner::jinja {

struct Token {
  enum class Kind {
    kText,
    kBlockBegin,
    kBlockEnd,
    kPrintBegin,
    kPrintEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // of kString: the value
  int line = 1;

  bool is(const char* symbol) const { return kind == Kind::kOperator && text == symbol; }
  bool is_name(const char* name) const { return kind == Kind::kName && text == name; }
};

// The last token is kEnd. Throws TemplateError.
std::vector<Token> tokenize(const std::string& source);

}  // namespace flashmla::runner::jinja
