#include "runner/tokenizer/jinja_eval.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "runner/tokenizer/jinja_arithmetic.h"
#include "runner/tokenizer/jinja_builtins.h"

namespace flashmla::runner::jinja {

namespace {

constexpr int kMostNested = 400;  // of evaluations inside evaluations, macros included

class Evaluator {
 public:
  explicit Evaluator(const std::vector<std::pair<std::string, Value>>& variables) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables) globals_[name] = value;
    function("namespace", [this](const Arguments& arguments) { return make_namespace(arguments); });
    function("range", [this](const Arguments& arguments) { return range(arguments, budget_); });
    function("raise_exception", [](const Arguments& arguments) -> Value {
      throw TemplateError("the template refuses: " +
                          (arguments.positional.empty() ? "no reason given" : to_text(arguments.positional[0])));
    });
  }

  std::string run(const Block& block) {
    try {
      execute(block);
    } catch (const TemplateError& error) {
      throw TemplateError("line " + std::to_string(line_) + ": " + error.what());
    }
    return std::move(output_);
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  using Scope = std::map<std::string, Value>;

  struct Nested {
    explicit Nested(int& count) : count_(count) {
      if (++count_ > kMostNested) {
        --count_;  // a constructor that throws has no destructor
        throw TemplateError("evaluation nested more than " + std::to_string(kMostNested) + " deep");
      }
    }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    ~Nested() { --count_; }
    int& count_;
  };

  void function(const std::string& name, std::function<Value(const Arguments&)> call) {
    globals_[name] = Value::callable({name, std::move(call), 1});
  }

  Value make_namespace(const Arguments& arguments) {
    namespaces_.push_back(std::make_unique<Namespace>());
    for (const Value& source : arguments.positional) {
      if (source.as_dict() == nullptr) throw TemplateError("namespace: got a positional argument that is no dict");
      for (const auto& [name, value] : source.as_dict()->items) namespaces_.back()->items[name] = value;
    }
    for (const auto& [name, value] : arguments.named) namespaces_.back()->items[name] = value;
    return namespaces_.back().get();
  }

  // A macro sees its own variables and those of the template's top; scopes_[0] is the top.
  const Value* find(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > first_scope_;) {
      if (const Value* value = find_in(scopes_[i], name)) return value;
    }
    if (const Value* value = find_in(scopes_[0], name)) return value;
    return find_in(globals_, name);
  }
  static const Value* find_in(const std::map<std::string, Value>& scope, const std::string& name) {
    const auto found = scope.find(name);
    return found == scope.end() ? nullptr : &found->second;
  }
  void assign(const std::string& name, Value value) { scopes_.back()[name] = std::move(value); }

  // ---- statements

  Flow execute(const Block& block) {
    const Nested nested(nested_);
    for (const Statement& statement : block) {
      const Flow flow = execute(statement);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow execute(const Statement& statement) {
    line_ = statement.line;
    switch (statement.kind) {
      case Statement::Kind::kText: print(statement.text); return Flow::kNext;
      case Statement::Kind::kPrint: print(to_text(evaluate(*statement.expr))); return Flow::kNext;
      case Statement::Kind::kIf: return if_statement(statement);
      case Statement::Kind::kFor: return for_statement(statement);
      case Statement::Kind::kSet: set_statement(statement); return Flow::kNext;
      case Statement::Kind::kSetBlock:
        assign(statement.text, Value::text(captured(statement.body)));
        return Flow::kNext;
      case Statement::Kind::kMacro: macro_statement(statement); return Flow::kNext;
      case Statement::Kind::kBreak: return Flow::kBreak;
      case Statement::Kind::kContinue: return Flow::kContinue;
    }
    return Flow::kNext;
  }

  void print(const std::string& text) {
    budget_.charge(text.size());
    output_ += text;
  }

  std::string captured(const Block& block) {
    std::string outer = std::exchange(output_, {});
    execute(block);
    return std::exchange(output_, std::move(outer));
  }

  Flow if_statement(const Statement& statement) {
    for (const Statement::Branch& branch : statement.branches) {
      if (branch.condition == nullptr || evaluate(*branch.condition).truthy()) return execute(branch.body);
    }
    return Flow::kNext;
  }

  void set_statement(const Statement& statement) {
    Value value = evaluate(*statement.expr);
    if (statement.attribute.empty()) return assign(statement.text, std::move(value));
    const Value* object = find(statement.text);
    Namespace* space = object == nullptr ? nullptr : object->as_namespace();
    if (space == nullptr) {
      throw TemplateError("set " + statement.text + "." + statement.attribute + ": '" + statement.text +
                          "' is no namespace");
    }
    space->items[statement.attribute] = std::move(value);
  }

  void bind(const Statement& statement, const Value& item) {
    if (statement.names.size() == 1) return assign(statement.names[0], item);
    const std::vector<Value> parts = items_of(item, budget_);
    if (parts.size() != statement.names.size()) {
      throw TemplateError("for: got an item of " + std::to_string(parts.size()) + " parts for " +
                          std::to_string(statement.names.size()) + " names");
    }
    for (size_t i = 0; i < parts.size(); ++i) assign(statement.names[i], parts[i]);
  }

  std::vector<Value> loop_items(const Statement& statement) {
    std::vector<Value> items = items_of(evaluate(*statement.expr), budget_);
    if (statement.condition == nullptr) return items;
    std::vector<Value> kept;
    for (const Value& item : items) {
      scopes_.emplace_back();
      bind(statement, item);
      if (evaluate(*statement.condition).truthy()) kept.push_back(item);
      scopes_.pop_back();
    }
    return kept;
  }

  Flow for_statement(const Statement& statement) {
    const std::vector<Value> items = loop_items(statement);
    if (items.empty()) return execute(statement.otherwise);
    for (size_t i = 0; i < items.size(); ++i) {
      budget_.charge(0);
      scopes_.emplace_back();  // what a turn sets, the next does not see
      bind(statement, items[i]);
      assign("loop", loop_variable(items, i));
      const Flow flow = execute(statement.body);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  static Value loop_variable(const std::vector<Value>& items, size_t at) {
    const auto index = static_cast<int64_t>(at);
    const auto length = static_cast<int64_t>(items.size());
    return Value::dict({{"index", Value::integer(index + 1)},
                        {"index0", Value::integer(index)},
                        {"revindex", Value::integer(length - index)},
                        {"revindex0", Value::integer(length - index - 1)},
                        {"first", Value::boolean(index == 0)},
                        {"last", Value::boolean(index + 1 == length)},
                        {"length", Value::integer(length)},
                        {"previtem", index == 0 ? Value(Undefined{"loop.previtem"}) : items[at - 1]},
                        {"nextitem", index + 1 == length ? Value(Undefined{"loop.nextitem"}) : items[at + 1]}});
  }

  void macro_statement(const Statement& statement) {
    const Statement* macro = &statement;
    assign(statement.text,
           Value::callable(
               {statement.text, [this, macro](const Arguments& arguments) { return call(*macro, arguments); }, 1}));
  }

  Value call(const Statement& macro, const Arguments& arguments) {
    if (arguments.positional.size() > macro.names.size()) {
      throw TemplateError(macro.text + "(): got " + std::to_string(arguments.positional.size()) +
                          " arguments; want at most " + std::to_string(macro.names.size()));
    }
    const size_t first_scope = std::exchange(first_scope_, scopes_.size());
    scopes_.emplace_back();
    const size_t without_default = macro.names.size() - macro.defaults.size();
    for (size_t i = 0; i < macro.names.size(); ++i) {
      Value value = Undefined{macro.names[i]};
      const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                      [&](const auto& argument) { return argument.first == macro.names[i]; });
      if (i < arguments.positional.size()) {
        value = arguments.positional[i];
      } else if (named != arguments.named.end()) {
        value = named->second;
      } else if (i >= without_default) {
        value = evaluate(*macro.defaults[i - without_default]);
      }
      assign(macro.names[i], std::move(value));
    }
    Value result = Value::text(captured(macro.body));
    scopes_.pop_back();
    first_scope_ = first_scope;
    return result;
  }

  // ---- expressions

  Value evaluate(const Expr& expr) {
    const Nested nested(nested_);
    budget_.charge(0);
    line_ = expr.line;
    switch (expr.kind) {
      case Expr::Kind::kConstant: return expr.value;
      case Expr::Kind::kName: return name_value(expr.name);
      case Expr::Kind::kList: return Value::list(evaluate_all(expr.parts, 0));
      case Expr::Kind::kDict: return dict_value(expr);
      case Expr::Kind::kAttribute: return member(evaluate(*expr.parts[0]), expr.name, true);
      case Expr::Kind::kItem: return item(evaluate(*expr.parts[0]), evaluate(*expr.parts[1]));
      case Expr::Kind::kSlice: return slice(expr);
      case Expr::Kind::kCall: return call_value(expr);
      case Expr::Kind::kFilter: {
        const Value value = evaluate(*expr.parts[0]);
        return call_filter(expr.name, value, evaluate_arguments(expr), budget_);
      }
      case Expr::Kind::kTest: {
        const Value value = evaluate(*expr.parts[0]);
        const Value argument = expr.parts.size() > 1 ? evaluate(*expr.parts[1]) : Value();
        return Value::boolean(call_test(expr.name, value, expr.parts.size() > 1 ? &argument : nullptr, budget_));
      }
      case Expr::Kind::kNot: return Value::boolean(!evaluate(*expr.parts[0]).truthy());
      case Expr::Kind::kNegative: return arithmetic("-", Value::integer(0), evaluate(*expr.parts[0]), budget_);
      case Expr::Kind::kAnd: {
        Value left = evaluate(*expr.parts[0]);
        return left.truthy() ? evaluate(*expr.parts[1]) : left;
      }
      case Expr::Kind::kOr: {
        Value left = evaluate(*expr.parts[0]);
        return left.truthy() ? left : evaluate(*expr.parts[1]);
      }
      case Expr::Kind::kArithmetic: {
        const Value left = evaluate(*expr.parts[0]);
        return arithmetic(expr.name, left, evaluate(*expr.parts[1]), budget_);
      }
      case Expr::Kind::kCompare: return comparison(expr);
      case Expr::Kind::kConditional:
        if (evaluate(*expr.parts[1]).truthy()) return evaluate(*expr.parts[0]);
        return expr.parts[2] == nullptr ? Value(Undefined{"the value of an 'if' without 'else'"})
                                        : evaluate(*expr.parts[2]);
    }
    return {};
  }

  Value name_value(const std::string& name) const {
    const Value* value = find(name);
    return value == nullptr ? Value(Undefined{name}) : *value;
  }

  std::vector<Value> evaluate_all(const std::vector<ExprPtr>& parts, size_t from) {
    std::vector<Value> values;
    for (size_t i = from; i < parts.size(); ++i) values.push_back(evaluate(*parts[i]));
    return values;
  }

  Arguments evaluate_arguments(const Expr& expr) {
    Arguments arguments;
    arguments.positional = evaluate_all(expr.parts, 1);
    for (const auto& [name, value] : expr.named) arguments.named.emplace_back(name, evaluate(*value));
    return arguments;
  }

  Value dict_value(const Expr& expr) {
    std::vector<std::pair<std::string, Value>> items;
    for (size_t i = 0; i + 1 < expr.parts.size(); i += 2) {
      budget_.charge(8 * items.size());  // each key is compared with those before
      const Value key = evaluate(*expr.parts[i]);
      if (key.as_text() == nullptr)
        throw TemplateError(std::string("got a dict key of type ") + key.type_name() + "; want a text");
      Value value = evaluate(*expr.parts[i + 1]);
      const auto old =
          std::find_if(items.begin(), items.end(), [&](const auto& known) { return known.first == *key.as_text(); });
      if (old != items.end()) {
        old->second = std::move(value);
      } else {
        items.emplace_back(*key.as_text(), std::move(value));
      }
    }
    return Value::dict(std::move(items));
  }

  // object.name looks for methods first, object['name'] for items.
  Value member(const Value& object, const std::string& name, bool methods_first) {
    if (object.is_undefined())
      throw TemplateError("'" + object.as<Undefined>()->name + "' is undefined; it has no '" + name + "'");
    std::optional<Value> method;
    if (methods_first) method = find_method(object, name, budget_);
    if (method) return *method;
    const Dict* dict = object.as_dict();
    if (dict != nullptr) budget_.charge(8 * dict->items.size());
    const Namespace* space = object.as_namespace();
    const Value* found = dict != nullptr ? dict->find(name) : space != nullptr ? find_in(space->items, name) : nullptr;
    if (found != nullptr) return *found;
    if (!methods_first) method = find_method(object, name, budget_);
    return method ? *method : Value(Undefined{std::string(object.type_name()) + "." + name});
  }

  Value item(const Value& object, const Value& key) {
    if (key.as_text() != nullptr) return member(object, *key.as_text(), false);
    if (object.is_undefined())
      throw TemplateError("'" + object.as<Undefined>()->name + "' is undefined; it has no items");
    if (!key.is_integer() || (object.as_list() == nullptr && object.as_text() == nullptr)) {
      return Undefined{std::string(object.type_name()) + "[...]"};
    }
    const List* list = object.as_list();
    const std::vector<Value> letters = list == nullptr ? items_of(object, budget_) : std::vector<Value>();
    const std::vector<Value>& items = list == nullptr ? letters : list->items;
    const auto size = static_cast<int64_t>(items.size());
    const int64_t at = key.to_integer();
    if (at >= size || at < -size) return Undefined{std::string(object.type_name()) + "[" + std::to_string(at) + "]"};
    return items[static_cast<size_t>(at < 0 ? at + size : at)];
  }

  Value slice(const Expr& expr) {
    const Value object = evaluate(*expr.parts[0]);
    std::optional<int64_t> bounds[3];
    for (size_t i = 0; i < 3; ++i) {
      if (expr.parts[i + 1] == nullptr) continue;
      const Value bound = evaluate(*expr.parts[i + 1]);
      if (bound.is_none()) continue;
      if (!bound.is_integer()) throw TemplateError(std::string("got a slice bound of type ") + bound.type_name());
      bounds[i] = bound.to_integer();
    }
    if (object.as_list() == nullptr && object.as_text() == nullptr) {
      throw TemplateError(std::string("got a slice of ") + object.type_name() + "; want a list or text");
    }
    const std::vector<Value> items = items_of(object, budget_);
    std::vector<Value> kept;
    for (int64_t i : slice_indices(static_cast<int64_t>(items.size()), bounds[0], bounds[1], bounds[2].value_or(1))) {
      kept.push_back(items[static_cast<size_t>(i)]);
    }
    if (object.as_list() != nullptr) return Value::list(std::move(kept));
    std::string text;
    for (const Value& letter : kept) text += *letter.as_text();
    return Value::text(std::move(text));
  }

  Value call_value(const Expr& expr) {
    const Value callee = evaluate(*expr.parts[0]);
    if (callee.is_undefined())
      throw TemplateError("'" + callee.as<Undefined>()->name + "' is undefined; it cannot be called");
    const Callable* callable = callee.as_callable();
    if (callable == nullptr) throw TemplateError(std::string("got ") + callee.type_name() + " to call");
    return callable->call(evaluate_arguments(expr));
  }

  Value comparison(const Expr& expr) {
    Value left = evaluate(*expr.parts[0]);
    for (size_t i = 0; i < expr.operators.size(); ++i) {
      Value right = evaluate(*expr.parts[i + 1]);
      if (!compare(expr.operators[i], left, right, budget_)) return Value::boolean(false);
      left = std::move(right);
    }
    return Value::boolean(true);
  }

  std::map<std::string, Value> globals_;
  std::vector<Scope> scopes_;
  size_t first_scope_ = 0;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  Budget budget_;
  std::string output_;
  int nested_ = 0;
  int line_ = 1;
};

}  // namespace

std::string render_template(const Block& block, const std::vector<std::pair<std::string, Value>>& variables) {
  return Evaluator(variables).run(block);
}

}  // namespace flashmla::runner::jinja
