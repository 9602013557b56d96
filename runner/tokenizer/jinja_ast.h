// The tree of a parsed chat template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/tokenizer/jinja_value.h"

namespace flashmla::runner::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    kConstant,     // value
    kName,         // name
    kList,         // parts
    kDict,         // parts: key, value, key, value, ...
    kAttribute,    // parts[0] . name
    kItem,         // parts[0] [ parts[1] ]
    kSlice,        // parts[0] [ parts[1] : parts[2] : parts[3] ], those absent are null
    kCall,         // parts[0] ( parts[1..], named )
    kFilter,       // parts[0] | name ( parts[1..], named )
    kTest,         // parts[0] is name ( parts[1..] )
    kNot,          // parts[0]
    kNegative,     // parts[0]
    kAnd,          // parts[0], parts[1]
    kOr,           // parts[0], parts[1]
    kArithmetic,   // parts[0] name parts[1]: + - * / // % ~
    kCompare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    kConditional,  // parts[0] if parts[1] else parts[2], which may be null
  };
  Kind kind = Kind::kConstant;
  int line = 1;
  int depth = 1;
  std::string name;
  Value value;
  std::vector<ExprPtr> parts;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> operators;
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind {
    kText,      // text
    kPrint,     // expr
    kIf,        // branches in order; the last condition may be null: else
    kFor,       // names in expr [if condition], body, otherwise
    kSet,       // name [. attribute] = expr
    kSetBlock,  // name = body
    kMacro,     // name(names, defaults), body
    kBreak,
    kContinue,
  };
  struct Branch {
    ExprPtr condition;
    Block body;
  };
  Kind kind = Kind::kText;
  int line = 1;
  std::string text;  // of kText; else the name
  std::string attribute;
  ExprPtr expr;
  ExprPtr condition;
  std::vector<std::string> names;
  std::vector<ExprPtr> defaults;  // of the last names
  std::vector<Branch> branches;
  Block body;
  Block otherwise;
};

// Throws TemplateError, which names the line and what is not supported.
Block parse_template(const std::string& source);

// Names that the evaluation knows; the parser refuses others with the list.
const std::vector<std::string>& filter_names();
const std::vector<std::string>& test_names();

}  // namespace flashmla::runner::jinja
