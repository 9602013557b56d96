#include "runner/tokenizer/jinja_arithmetic.h"

#include <cmath>

namespace flashmla::runner::jinja {

namespace {

constexpr int64_t kMostRepeats = 1 << 20;

[[noreturn]] void fail(const std::string& symbol, const Value& left, const Value& right) {
  const auto text = [](const Value& value) {
    return value.is_undefined() ? "undefined ('" + value.as<Undefined>()->name + "')" : std::string(value.type_name());
  };
  throw TemplateError("got " + text(left) + " " + symbol + " " + text(right) + ", which Python does not compute");
}

Value integers(const std::string& symbol, int64_t left, int64_t right) {
  int64_t result = 0;
  bool overflow = false;
  if (symbol == "+") {
    overflow = __builtin_add_overflow(left, right, &result);
  } else if (symbol == "-") {
    overflow = __builtin_sub_overflow(left, right, &result);
  } else if (symbol == "*") {
    overflow = __builtin_mul_overflow(left, right, &result);
  } else if (right == 0) {
    throw TemplateError("got a division by zero");
  } else if (right == -1) {
    overflow = symbol == "//" && __builtin_sub_overflow(int64_t{0}, left, &result);
  } else {
    const int64_t rest = left % right;
    const bool down = rest != 0 && (rest < 0) != (right < 0);  // Python rounds down
    result = symbol == "//" ? left / right - (down ? 1 : 0) : rest + (down ? right : 0);
  }
  if (overflow) throw TemplateError("got an integer outside 64 bits");
  return Value::integer(result);
}

Value numbers(const std::string& symbol, double left, double right) {
  if (symbol == "+") return Value::number(left + right);
  if (symbol == "-") return Value::number(left - right);
  if (symbol == "*") return Value::number(left * right);
  if (right == 0) throw TemplateError("got a division by zero");
  if (symbol == "/") return Value::number(left / right);
  const double quotient = std::floor(left / right);
  return Value::number(symbol == "//" ? quotient : left - quotient * right);
}

Value repeated(const std::string& text, int64_t times, Budget& budget) {
  if (times > kMostRepeats) throw TemplateError("got a text times " + std::to_string(times) + "; want at most 2^20");
  std::string result;
  for (int64_t i = 0; i < times; ++i) {
    budget.charge(text.size());
    result += text;
  }
  return Value::text(std::move(result));
}

}  // namespace

Value arithmetic(const std::string& symbol, const Value& left, const Value& right, Budget& budget) {
  if (symbol == "~") {
    std::string text = to_text(left) + to_text(right);
    budget.charge(text.size());
    return Value::text(std::move(text));
  }
  if (left.is_number() && right.is_number()) {
    if (left.is_integer() && right.is_integer() && symbol != "/")
      return integers(symbol, left.to_integer(), right.to_integer());
    return numbers(symbol, left.to_number(), right.to_number());
  }
  const std::string* a = left.as_text();
  const std::string* b = right.as_text();
  if (symbol == "+" && a != nullptr && b != nullptr) {
    budget.charge(a->size() + b->size());
    return Value::text(*a + *b);
  }
  if (symbol == "+" && left.as_list() != nullptr && right.as_list() != nullptr) {
    std::vector<Value> items = left.as_list()->items;
    items.insert(items.end(), right.as_list()->items.begin(), right.as_list()->items.end());
    budget.charge(64 * items.size());
    return Value::list(std::move(items));
  }
  if (symbol == "*" && a != nullptr && right.is_integer()) return repeated(*a, right.to_integer(), budget);
  if (symbol == "*" && b != nullptr && left.is_integer()) return repeated(*b, left.to_integer(), budget);
  fail(symbol, left, right);
}

bool compare(const std::string& symbol, const Value& left, const Value& right, Budget& budget) {
  if (symbol == "in") return contains(right, left, budget);
  if (symbol == "not in") return !contains(right, left, budget);
  if (left.as_text() != nullptr) budget.charge(left.as_text()->size());
  if (symbol == "==") return equal(left, right);
  if (symbol == "!=") return !equal(left, right);
  double order = 0;
  if (left.is_integer() && right.is_integer()) {
    order = left.to_integer() < right.to_integer() ? -1 : left.to_integer() > right.to_integer() ? 1 : 0;
  } else if (left.is_number() && right.is_number()) {
    order = left.to_number() - right.to_number();
  } else if (left.as_text() != nullptr && right.as_text() != nullptr) {
    order = left.as_text()->compare(*right.as_text());  // bytes of UTF-8 sort as characters do
  } else {
    fail(symbol, left, right);
  }
  return symbol == "<" ? order < 0 : symbol == "<=" ? order <= 0 : symbol == ">" ? order > 0 : order >= 0;
}

}  // namespace flashmla::runner::jinja
