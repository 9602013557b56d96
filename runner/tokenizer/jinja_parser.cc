// Tags to statements.
#include <algorithm>
#include <initializer_list>

#include "runner/error_text.h"
#include "runner/tokenizer/jinja_ast.h"
#include "runner/tokenizer/jinja_expr_parser.h"

namespace flashmla::runner::jinja {

namespace {

constexpr int kMostNested = 50;

class Parser : public ExprParser {
 public:
  explicit Parser(const std::string& source) : ExprParser(tokenize(source)) {}

  Block run() {
    Block block = body({});
    if (now().kind != Token::Kind::kEnd) fail("got " + text_of(now()) + " outside a tag");
    return block;
  }

 private:
  using Kind = Statement::Kind;

  Statement make(Kind kind) const {
    Statement statement;
    statement.kind = kind;
    statement.line = now().line;
    return statement;
  }

  // Up to a tag named in `ends` (left unread behind its '{%'), or the template's end when there is none.
  Block body(std::initializer_list<const char*> ends) {
    if (++nested_ > kMostNested) fail("tags nested more than " + std::to_string(kMostNested) + " deep");
    Block block;
    while (now().kind != Token::Kind::kEnd) {
      if (now().kind == Token::Kind::kText) {
        Statement statement = make(Kind::kText);
        statement.text = take().text;
        block.push_back(std::move(statement));
      } else if (now().kind == Token::Kind::kPrintBegin) {
        take();
        Statement statement = make(Kind::kPrint);
        statement.expr = expression_or_tuple();
        end_tag(Token::Kind::kPrintEnd);
        block.push_back(std::move(statement));
      } else {
        take();
        if (std::any_of(ends.begin(), ends.end(), [&](const char* end) { return now().is_name(end); })) {
          --nested_;
          return block;
        }
        block.push_back(tag(ends));
      }
    }
    if (ends.size() > 0) fail(std::string("got the end of the template; want '{% ") + *(ends.end() - 1) + " %}'");
    --nested_;
    return block;
  }

  void end_tag(Token::Kind end = Token::Kind::kBlockEnd) {
    if (now().kind != end) {
      fail("got " + text_of(now()) + "; want " + (end == Token::Kind::kBlockEnd ? "'%}'" : "'}}'"));
    }
    take();
  }

  // Of a closing tag, whose name body() has seen.
  void close() {
    take();
    end_tag();
  }

  Statement tag(std::initializer_list<const char*> ends) {
    if (now().is_name("if")) return if_tag();
    if (now().is_name("for")) return for_tag();
    if (now().is_name("set")) return set_tag();
    if (now().is_name("macro")) return macro_tag();
    if (now().is_name("break") || now().is_name("continue")) {
      Statement statement = make(now().is_name("break") ? Kind::kBreak : Kind::kContinue);
      if (loops_ == 0) fail("got '" + now().text + "' outside a loop");
      take();
      end_tag();
      return statement;
    }
    std::string wanted = "if, for, set, macro, break, continue";
    for (const char* end : ends) wanted += std::string(", ") + end;
    fail("got the tag " + text_of(now()) + "; supported here: " + wanted);
  }

  Statement if_tag() {
    Statement statement = make(Kind::kIf);
    take();
    Statement::Branch branch;
    branch.condition = expression();
    end_tag();
    while (true) {
      branch.body = body({"elif", "else", "endif"});
      statement.branches.push_back(std::move(branch));
      branch = {};
      if (accept_name("elif")) {
        branch.condition = expression();
        end_tag();
        continue;
      }
      if (accept_name("else")) {
        end_tag();
        branch.body = body({"endif"});
        statement.branches.push_back(std::move(branch));
      }
      close();
      return statement;
    }
  }

  Statement for_tag() {
    Statement statement = make(Kind::kFor);
    take();
    do {
      statement.names.push_back(expect_name("a loop variable"));
    } while (accept(","));
    if (!accept_name("in")) fail("got " + text_of(now()) + "; want 'in'");
    statement.expr = expression_without_if();
    if (accept_name("if")) statement.condition = expression();
    if (now().is_name("recursive")) fail("'recursive' loops are not supported");
    end_tag();
    ++loops_;
    statement.body = body({"else", "endfor"});
    --loops_;
    if (accept_name("else")) {
      end_tag();
      statement.otherwise = body({"endfor"});
    }
    close();
    return statement;
  }

  Statement set_tag() {
    Statement statement = make(Kind::kSet);
    take();
    statement.text = expect_name("a variable's name");
    if (accept(".")) statement.attribute = expect_name("an attribute's name");
    if (now().is(",")) fail("'set' of several variables is not supported");
    if (accept("=")) {
      statement.expr = expression_or_tuple();
      end_tag();
      return statement;
    }
    if (!statement.attribute.empty() || now().kind != Token::Kind::kBlockEnd)
      fail("got " + text_of(now()) + "; want '='");
    end_tag();
    statement.kind = Kind::kSetBlock;
    statement.body = body({"endset"});
    close();
    return statement;
  }

  Statement macro_tag() {
    if (nested_ > 1) fail("'macro' inside another tag is not supported");
    Statement statement = make(Kind::kMacro);
    take();
    statement.text = expect_name("a macro's name");
    expect("(");
    while (!now().is(")")) {
      statement.names.push_back(expect_name("a parameter's name"));
      if (accept("=")) {
        statement.defaults.push_back(expression());
      } else if (!statement.defaults.empty()) {
        fail("got a parameter without default behind one with it");
      }
      if (!accept(",")) break;
    }
    expect(")");
    end_tag();
    const int loops = std::exchange(loops_, 0);
    statement.body = body({"endmacro"});
    loops_ = loops;
    close();
    return statement;
  }

  int nested_ = 0;
  int loops_ = 0;
};

}  // namespace

Block parse_template(const std::string& source) { return Parser(source).run(); }

}  // namespace flashmla::runner::jinja
