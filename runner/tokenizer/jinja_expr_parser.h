// Words of tags to expressions, by Jinja's grammar.
#pragma once

#include <string>
#include <vector>

#include "runner/tokenizer/jinja_ast.h"
#include "runner/tokenizer/jinja_lexer.h"

namespace flashmla::runner::jinja {

class ExprParser {
 public:
  explicit ExprParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  ExprPtr expression();             // with `a if b else c`
  ExprPtr expression_or_tuple();    // `a, b` makes a list
  ExprPtr expression_without_if();  // of a for's list: an `if` there is the loop's own

  [[noreturn]] void fail(const std::string& what) const;
  const Token& now() const { return tokens_[at_]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool accept(const char* symbol);
  bool accept_name(const char* name);
  void expect(const char* symbol);
  std::string expect_name(const char* what);
  static std::string text_of(const Token& token);

 private:
  ExprPtr any_of();  // or
  ExprPtr all_of();  // and
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr signed_value(bool with_filters);
  ExprPtr primary();
  ExprPtr name_or_constant();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr value);
  ExprPtr filters_and_tests(ExprPtr value);
  ExprPtr test(ExprPtr value);
  ExprPtr subscript(ExprPtr value);
  void arguments(Expr& call);
  ExprPtr chain(ExprPtr (ExprParser::*part)(), const std::vector<const char*>& operators);

  ExprPtr make(Expr::Kind kind, std::string name = "") const;
  ExprPtr with(ExprPtr parent, std::vector<ExprPtr> parts) const;
  void add_part(Expr& parent, ExprPtr part) const;

  struct Nested;  // counts the recursion
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nested_ = 0;
};

}  // namespace flashmla::runner::jinja
