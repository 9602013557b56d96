#include "runner/tokenizer/jinja_expr_parser.h"

#include <algorithm>
#include <cstdlib>

#include "runner/error_text.h"

namespace flashmla::runner::jinja {

namespace {

constexpr int kMostNested = 100;  // parsing and evaluation recurse

bool is_any(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

struct ExprParser::Nested {
  explicit Nested(ExprParser& parser) : parser_(parser) {
    if (++parser_.nested_ > kMostNested)
      parser_.fail("expression nested more than " + std::to_string(kMostNested) + " deep");
  }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;
  ~Nested() { --parser_.nested_; }
  ExprParser& parser_;
};

void ExprParser::fail(const std::string& what) const {
  throw TemplateError("line " + std::to_string(now().line) + ": " + what);
}

std::string ExprParser::text_of(const Token& token) {
  using Kind = Token::Kind;
  switch (token.kind) {
    case Kind::kBlockEnd: return "'%}'";
    case Kind::kPrintEnd: return "'}}'";
    case Kind::kEnd: return "the end of the template";
    case Kind::kString: return "the text " + in_quotes(token.text);
    default: return in_quotes(token.text);
  }
}

bool ExprParser::accept(const char* symbol) {
  if (!now().is(symbol)) return false;
  take();
  return true;
}

bool ExprParser::accept_name(const char* name) {
  if (!now().is_name(name)) return false;
  take();
  return true;
}

void ExprParser::expect(const char* symbol) {
  if (!accept(symbol)) fail("got " + text_of(now()) + "; want '" + symbol + "'");
}

std::string ExprParser::expect_name(const char* what) {
  if (now().kind != Token::Kind::kName) fail("got " + text_of(now()) + "; want " + what);
  return take().text;
}

ExprPtr ExprParser::make(Expr::Kind kind, std::string name) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = now().line;
  expr->name = std::move(name);
  return expr;
}

void ExprParser::add_part(Expr& parent, ExprPtr part) const {
  if (part != nullptr) parent.depth = std::max(parent.depth, part->depth + 1);
  if (parent.depth > kMostNested) fail("expression of more than " + std::to_string(kMostNested) + " steps");
  parent.parts.push_back(std::move(part));
}

ExprPtr ExprParser::with(ExprPtr parent, std::vector<ExprPtr> parts) const {
  for (ExprPtr& part : parts) add_part(*parent, std::move(part));
  return parent;
}

namespace {

std::vector<ExprPtr> parts_of(ExprPtr a, ExprPtr b) {
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(a));
  parts.push_back(std::move(b));
  return parts;
}

std::vector<ExprPtr> parts_of(ExprPtr a) {
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(a));
  return parts;
}

}  // namespace

ExprPtr ExprParser::expression() {
  const Nested nested(*this);
  ExprPtr value = any_of();
  while (accept_name("if")) {
    ExprPtr conditional = make(Expr::Kind::kConditional);
    add_part(*conditional, std::move(value));
    add_part(*conditional, any_of());
    add_part(*conditional, accept_name("else") ? expression() : nullptr);
    value = std::move(conditional);
  }
  return value;
}

ExprPtr ExprParser::expression_without_if() { return any_of(); }

ExprPtr ExprParser::expression_or_tuple() {
  ExprPtr first = expression();
  if (!now().is(",")) return first;
  ExprPtr list = with(make(Expr::Kind::kList), parts_of(std::move(first)));
  while (accept(",")) add_part(*list, expression());
  return list;
}

ExprPtr ExprParser::any_of() {
  ExprPtr value = all_of();
  while (accept_name("or")) value = with(make(Expr::Kind::kOr), parts_of(std::move(value), all_of()));
  return value;
}

ExprPtr ExprParser::all_of() {
  ExprPtr value = negation();
  while (accept_name("and")) value = with(make(Expr::Kind::kAnd), parts_of(std::move(value), negation()));
  return value;
}

ExprPtr ExprParser::negation() {
  if (!now().is_name("not")) return comparison();
  const Nested nested(*this);
  take();
  return with(make(Expr::Kind::kNot), parts_of(negation()));
}

ExprPtr ExprParser::comparison() {
  ExprPtr value = sum();
  ExprPtr compare;
  while (true) {
    std::string symbol;
    for (const char* candidate : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (accept(candidate)) symbol = candidate;
      if (!symbol.empty()) break;
    }
    if (symbol.empty() && accept_name("in")) symbol = "in";
    if (symbol.empty() && now().is_name("not") && tokens_[at_ + 1].is_name("in")) {
      take();
      take();
      symbol = "not in";
    }
    if (symbol.empty()) break;
    if (compare == nullptr) compare = with(make(Expr::Kind::kCompare), parts_of(std::move(value)));
    compare->operators.push_back(symbol);
    add_part(*compare, sum());
  }
  return compare == nullptr ? std::move(value) : std::move(compare);
}

ExprPtr ExprParser::chain(ExprPtr (ExprParser::*part)(), const std::vector<const char*>& operators) {
  ExprPtr value = (this->*part)();
  while (true) {
    const auto found = std::find_if(operators.begin(), operators.end(), [&](const char* s) { return now().is(s); });
    if (found == operators.end()) return value;
    take();
    ExprPtr right = (this->*part)();
    value = with(make(Expr::Kind::kArithmetic, *found), parts_of(std::move(value), std::move(right)));
  }
}

ExprPtr ExprParser::sum() { return chain(&ExprParser::concatenation, {"+", "-"}); }
ExprPtr ExprParser::concatenation() { return chain(&ExprParser::product, {"~"}); }

ExprPtr ExprParser::product() {
  ExprPtr value = signed_value(true);
  while (true) {
    if (now().is("**")) fail("operator '**' is not supported");
    const std::string symbol = now().kind == Token::Kind::kOperator ? now().text : "";
    if (symbol != "*" && symbol != "/" && symbol != "//" && symbol != "%") return value;
    take();
    value = with(make(Expr::Kind::kArithmetic, symbol), parts_of(std::move(value), signed_value(true)));
  }
}

ExprPtr ExprParser::signed_value(bool with_filters) {
  const Nested nested(*this);
  ExprPtr value;
  if (accept("-")) {
    value = with(make(Expr::Kind::kNegative), parts_of(signed_value(false)));
  } else if (accept("+")) {
    value = signed_value(false);
  } else {
    value = postfix(primary());
  }
  return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
}

ExprPtr ExprParser::primary() {
  using Kind = Token::Kind;
  const Token token = now();
  ExprPtr constant = make(Expr::Kind::kConstant);
  switch (token.kind) {
    case Kind::kName: return name_or_constant();
    case Kind::kInteger:
      take();
      constant->value = Value::integer(std::stoll(token.text));
      return constant;
    case Kind::kFloat:
      take();
      constant->value = Value::number(std::strtod(token.text.c_str(), nullptr));
      return constant;
    case Kind::kString: {
      std::string text;
      while (now().kind == Kind::kString) text += take().text;  // neighbours are one text, as in Python
      constant->value = Value::text(std::move(text));
      return constant;
    }
    default: break;
  }
  if (accept("(")) {
    ExprPtr value = now().is(")") ? make(Expr::Kind::kList) : expression_or_tuple();
    expect(")");
    return value;
  }
  if (accept("[")) return list();
  if (accept("{")) return dict();
  fail("got " + text_of(token) + "; want a value");
}

ExprPtr ExprParser::name_or_constant() {
  ExprPtr expr = make(Expr::Kind::kConstant);
  const std::string name = take().text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    expr->value = Value::boolean(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    expr->value = None{};
  } else if (is_any({"and", "or", "not", "in", "is", "if", "else"}, name)) {
    fail("got '" + name + "'; want a value");
  } else {
    expr->kind = Expr::Kind::kName;
    expr->name = name;
  }
  return expr;
}

ExprPtr ExprParser::list() {
  ExprPtr list = make(Expr::Kind::kList);
  while (!now().is("]")) {
    add_part(*list, expression());
    if (!accept(",")) break;
  }
  expect("]");
  return list;
}

ExprPtr ExprParser::dict() {
  ExprPtr dict = make(Expr::Kind::kDict);
  while (!now().is("}")) {
    add_part(*dict, expression());
    expect(":");
    add_part(*dict, expression());
    if (!accept(",")) break;
  }
  expect("}");
  return dict;
}

ExprPtr ExprParser::postfix(ExprPtr value) {
  while (true) {
    if (accept(".")) {
      const std::string name = expect_name("an attribute's name");
      value = with(make(Expr::Kind::kAttribute, name), parts_of(std::move(value)));
    } else if (accept("[")) {
      value = subscript(std::move(value));
    } else if (accept("(")) {
      value = with(make(Expr::Kind::kCall), parts_of(std::move(value)));
      arguments(*value);
    } else {
      return value;
    }
  }
}

ExprPtr ExprParser::subscript(ExprPtr value) {
  ExprPtr parts[3];
  int count = 0;
  bool slice = false;
  while (true) {
    if (!now().is(":") && !now().is("]")) parts[count] = expression();
    if (!now().is(":")) break;
    take();
    slice = true;
    if (++count == 3) fail("got a third ':' in a slice");
  }
  expect("]");
  if (!slice && parts[0] == nullptr) fail("got '[]'; want an index");
  ExprPtr result = with(make(slice ? Expr::Kind::kSlice : Expr::Kind::kItem), parts_of(std::move(value)));
  for (int i = 0; i < (slice ? 3 : 1); ++i) add_part(*result, std::move(parts[i]));
  return result;
}

void ExprParser::arguments(Expr& call) {
  while (!now().is(")")) {
    if (now().is("*") || now().is("**")) fail("got '" + now().text + "'; arguments by '*' are not supported");
    if (now().kind == Token::Kind::kName && tokens_[at_ + 1].is("=")) {
      const std::string name = take().text;
      take();
      ExprPtr value = expression();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(name, std::move(value));
    } else {
      add_part(call, expression());
    }
    if (!accept(",")) break;
  }
  expect(")");
}

ExprPtr ExprParser::filters_and_tests(ExprPtr value) {
  while (true) {
    if (accept("|")) {
      const std::string name = expect_name("a filter's name");
      if (!is_any(filter_names(), name)) {
        fail("got the filter '" + name + "'; supported: " + list_text(filter_names(), filter_names().size()));
      }
      value = with(make(Expr::Kind::kFilter, name), parts_of(std::move(value)));
      if (accept("(")) arguments(*value);
    } else if (accept_name("is")) {
      value = test(std::move(value));
    } else if (now().is("(")) {
      value = postfix(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExprParser::test(ExprPtr value) {
  const bool negated = accept_name("not");
  const std::string name = now().is("==") || now().is("!=") ? take().text : expect_name("a test's name");
  if (!is_any(test_names(), name)) {
    fail("got the test '" + name + "'; supported: " + list_text(test_names(), test_names().size()));
  }
  ExprPtr result = with(make(Expr::Kind::kTest, name), parts_of(std::move(value)));
  const bool wants_value = is_any({"==", "!=", "eq", "ne", "equalto", "divisibleby", "in"}, name);
  if (accept("(")) {
    arguments(*result);
  } else if (wants_value) {
    add_part(*result, postfix(primary()));
  }
  if (result->parts.size() != (wants_value ? 2u : 1u)) {
    fail("test '" + name + "': got " + std::to_string(result->parts.size() - 1) + " arguments; want " +
         (wants_value ? "1" : "none"));
  }
  return negated ? with(make(Expr::Kind::kNot), parts_of(std::move(result))) : std::move(result);
}

}  // namespace flashmla::runner::jinja
