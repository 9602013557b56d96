#include "runner/tokenizer/jinja_builtins.h"

#include <algorithm>
#include <cmath>

#include "runner/tokenizer/jinja_ast.h"
#include "runner/tokenizer/jinja_text_methods.h"
#include "runner/tokenizer/utf8.h"

namespace flashmla::runner::jinja {

void Budget::charge(size_t bytes) {
  constexpr uint64_t kMostSteps = 5'000'000;
  steps_ += 1 + bytes / 64;
  if (steps_ > kMostSteps) throw TemplateError("gave up after " + std::to_string(kMostSteps) + " steps");
}

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> result;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t bytes = utf8_next(rest).bytes;
    result.emplace_back(rest.substr(0, bytes));
    rest.remove_prefix(bytes);
  }
  return result;
}

std::vector<Value> items_of(const Value& value, Budget& budget) {
  std::vector<Value> items;
  if (const List* list = value.as_list()) {
    items = list->items;
  } else if (const Dict* dict = value.as_dict()) {
    for (const auto& [key, item] : dict->items) items.push_back(Value::text(key));
  } else if (const std::string* text = value.as_text()) {
    budget.charge(64 * text->size());
    for (std::string& character : characters(*text)) items.push_back(Value::text(std::move(character)));
  } else if (!value.is_undefined()) {
    throw TemplateError(std::string("got ") + value.type_name() + "; want a list, dict or text to go through");
  }
  budget.charge(64 * items.size());
  return items;
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (const std::string* text = container.as_text()) {
    if (item.as_text() == nullptr)
      throw TemplateError(std::string("got ") + item.type_name() + " 'in' a text; want a text");
    budget.charge(text->size());
    return text->find(*item.as_text()) != std::string::npos;
  }
  if (const Dict* dict = container.as_dict()) {
    budget.charge(64 * dict->items.size());
    return item.as_text() != nullptr && dict->find(*item.as_text()) != nullptr;
  }
  for (const Value& candidate : items_of(container, budget)) {
    if (candidate.as_text() != nullptr) budget.charge(candidate.as_text()->size());
    if (equal(candidate, item)) return true;
  }
  return false;
}

std::vector<int64_t> slice_indices(int64_t size, std::optional<int64_t> start, std::optional<int64_t> stop,
                                   int64_t step) {
  if (step == 0) throw TemplateError("got a slice of step 0");
  const int64_t lowest = step > 0 ? 0 : -1;
  const int64_t highest = step > 0 ? size : size - 1;
  const auto bound = [&](std::optional<int64_t> at, int64_t absent) {
    if (!at) return absent;
    const int64_t index = *at < 0 ? (*at < -size ? -1 : *at + size) : *at;
    return std::clamp(index, lowest, highest);
  };
  const int64_t first = bound(start, step > 0 ? lowest : highest);
  const int64_t end = bound(stop, step > 0 ? highest : lowest);
  std::vector<int64_t> indices;
  for (int64_t i = first; step > 0 ? i < end : i > end;) {
    indices.push_back(i);
    if (step > size || step < -size) break;
    i += step;
  }
  return indices;
}

Value range(const Arguments& arguments, Budget& budget) {
  constexpr int64_t kMostItems = 100'000;
  int64_t numbers[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty()) throw TemplateError("range: want 1 to 3 integers");
  for (size_t i = 0; i < count; ++i) {
    if (!arguments.positional[i].is_integer()) throw TemplateError("range: want integers");
    numbers[count == 1 ? 1 : i] = arguments.positional[i].to_integer();
  }
  const auto [start, stop, step] = numbers;
  if (step == 0) throw TemplateError("range: got step 0");
  const double items = (static_cast<double>(stop) - static_cast<double>(start)) / static_cast<double>(step);
  if (items > kMostItems) throw TemplateError("range: got more than " + std::to_string(kMostItems) + " items");
  std::vector<Value> list;
  for (int64_t i = 0; i < static_cast<int64_t>(std::ceil(items)); ++i) list.push_back(Value::integer(start + i * step));
  budget.charge(64 * list.size());
  return Value::list(std::move(list));
}

namespace {

// The arguments of one call by position or name.
class Parameters {
 public:
  Parameters(const std::string& function, const Arguments& arguments, std::vector<std::string> names)
      : function_(function), arguments_(arguments), names_(std::move(names)) {
    if (arguments.positional.size() > names_.size()) {
      throw TemplateError(function + ": got " + std::to_string(arguments.positional.size()) +
                          " arguments; want at most " + std::to_string(names_.size()));
    }
    for (const auto& [name, value] : arguments.named) {
      if (std::find(names_.begin(), names_.end(), name) == names_.end()) {
        throw TemplateError(function + ": got an argument '" + name + "'");
      }
    }
  }

  const Value* find(size_t index) const {
    if (index < arguments_.positional.size()) return &arguments_.positional[index];
    for (const auto& [name, value] : arguments_.named) {
      if (name == names_[index]) return &value;
    }
    return nullptr;
  }
  std::string text(size_t index, const std::string& absent) const {
    const Value* value = find(index);
    return value == nullptr ? absent : to_text(*value);
  }
  int64_t integer(size_t index, int64_t absent) const {
    const Value* value = find(index);
    if (value == nullptr || value->is_none()) return absent;
    if (!value->is_integer()) throw TemplateError(function_ + ": " + names_[index] + ": want an integer");
    return value->to_integer();
  }
  bool flag(size_t index, bool absent) const {
    const Value* value = find(index);
    return value == nullptr ? absent : value->truthy();
  }

 private:
  const std::string& function_;
  const Arguments& arguments_;
  std::vector<std::string> names_;
};

Value text_of(const Value& value) { return Value::text(to_text(value)); }

Value length(const Value& value) {
  if (const std::string* text = value.as_text()) return Value::integer(static_cast<int64_t>(utf8_length(*text)));
  if (const List* list = value.as_list()) return Value::integer(static_cast<int64_t>(list->items.size()));
  if (const Dict* dict = value.as_dict()) return Value::integer(static_cast<int64_t>(dict->items.size()));
  if (value.is_undefined()) return Value::integer(0);
  throw TemplateError(std::string("length: got ") + value.type_name() + "; want a text, list or dict");
}

Value first_or_last(const Value& value, bool first, Budget& budget) {
  const std::vector<Value> items = items_of(value, budget);
  if (items.empty()) return Undefined{first ? "first" : "last"};
  return first ? items.front() : items.back();
}

Value join(const Value& value, const Parameters& parameters, Budget& budget) {
  const std::string separator = parameters.text(0, "");
  std::string result;
  const std::vector<Value> items = items_of(value, budget);
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string part = to_text(items[i]);
    budget.charge(part.size() + separator.size());
    result += (i == 0 ? "" : separator) + part;
  }
  return Value::text(std::move(result));
}

Value to_integer(const Value& value, const Parameters& parameters) {
  const int64_t absent = parameters.integer(0, 0);
  if (value.is_integer()) return Value::integer(value.to_integer());
  if (value.is_number()) {
    const double number = value.to_number();
    return Value::integer(std::abs(number) < 9e18 ? static_cast<int64_t>(number) : absent);
  }
  const std::string text = to_text(text_method(text_of(value), "strip", {}));
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  if (text.size() == sign || text.size() > 18 || text.find_first_not_of("0123456789", sign) != std::string::npos) {
    return Value::integer(absent);
  }
  return Value::integer(std::stoll(text));
}

Value pairs_of(const Value& value) {
  std::vector<Value> pairs;
  if (value.is_undefined()) return Value::list({});
  const Dict* dict = value.as_dict();
  if (dict == nullptr) throw TemplateError(std::string("items: got ") + value.type_name() + "; want a dict");
  for (const auto& [key, item] : dict->items) pairs.push_back(Value::list({Value::text(key), item}));
  return Value::list(std::move(pairs));
}

Value text_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  return text_method(text_of(value), name == "trim" ? "strip" : name, arguments);
}

}  // namespace

const std::vector<std::string>& filter_names() {
  static const std::vector<std::string> names = {"capitalize", "count", "d",      "default", "first", "int",
                                                 "items",      "join",  "last",   "length",  "list",  "lower",
                                                 "replace",    "safe",  "string", "tojson",  "trim",  "upper"};
  return names;
}

Value call_filter(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget) {
  if (value.as_text() != nullptr) budget.charge(value.as_text()->size());
  if (name == "capitalize" || name == "lower" || name == "replace" || name == "trim" || name == "upper") {
    const Value result = text_filter(name, value, arguments);
    budget.charge(result.as_text()->size());
    return result;
  }
  if (name == "default" || name == "d") {
    const Parameters parameters(name, arguments, {"default_value", "boolean"});
    const bool replaced = value.is_undefined() || (parameters.flag(1, false) && !value.truthy());
    const Value* other = parameters.find(0);
    return !replaced ? value : other == nullptr ? Value::text("") : *other;
  }
  if (name == "tojson") {
    const Parameters parameters(name, arguments, {"ensure_ascii", "indent"});
    std::string json = to_json(value, parameters.integer(1, -1), parameters.flag(0, false));
    budget.charge(json.size());
    return Value::text(std::move(json));
  }
  if (name == "join") return join(value, Parameters(name, arguments, {"d"}), budget);
  if (name == "int") return to_integer(value, Parameters(name, arguments, {"default"}));
  const Parameters none(name, arguments, {});
  if (name == "first" || name == "last") return first_or_last(value, name == "first", budget);
  if (name == "items") return pairs_of(value);
  if (name == "length" || name == "count") return length(value);
  if (name == "list") return Value::list(items_of(value, budget));
  return text_of(value);  // string, safe
}

const std::vector<std::string>& test_names() {
  static const std::vector<std::string> names = {"!=",       "==",      "boolean", "defined",  "divisibleby", "eq",
                                                 "equalto",  "even",    "false",   "float",    "in",          "integer",
                                                 "iterable", "mapping", "ne",      "none",     "number",      "odd",
                                                 "sequence", "string",  "true",    "undefined"};
  return names;
}

bool call_test(const std::string& name, const Value& value, const Value* argument, Budget& budget) {
  const auto remainder = [&](int64_t divisor) {
    if (!value.is_integer()) throw TemplateError("test '" + name + "': got " + value.type_name() + "; want an integer");
    if (divisor == 0) throw TemplateError("test '" + name + "': got 0 to divide by");
    return divisor == -1 ? 0 : value.to_integer() % divisor;
  };
  if (argument != nullptr && name != "divisibleby") {
    if (name == "in") return contains(*argument, value, budget);
    if (value.as_text() != nullptr) budget.charge(value.as_text()->size());
    return equal(value, *argument) == (name != "ne" && name != "!=");
  }
  if (name == "divisibleby") {
    if (!argument->is_integer()) throw TemplateError("test 'divisibleby': want an integer");
    return remainder(argument->to_integer()) == 0;
  }
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.as_text() != nullptr;
  if (name == "mapping") return value.as_dict() != nullptr;
  if (name == "boolean") return value.as<bool>() != nullptr;
  if (name == "true" || name == "false") return value.as<bool>() != nullptr && *value.as<bool>() == (name == "true");
  if (name == "integer") return value.as<int64_t>() != nullptr;
  if (name == "float") return value.as<double>() != nullptr;
  if (name == "number") return value.is_number();
  if (name == "odd" || name == "even") return (remainder(2) == 0) == (name == "even");
  // iterable, sequence
  return value.as_text() != nullptr || value.as_list() != nullptr || value.as_dict() != nullptr || value.is_undefined();
}

std::optional<Value> find_method(const Value& object, const std::string& name, Budget& budget) {
  if (object.as_text() != nullptr) {
    if (!is_text_method(name)) return std::nullopt;
    return Value::callable({name,
                            [object, name, &budget](const Arguments& arguments) {
                              budget.charge(object.as_text()->size());
                              Value result = text_method(object, name, arguments);
                              if (result.as_text() != nullptr) budget.charge(result.as_text()->size());
                              if (result.as_list() != nullptr) budget.charge(64 * result.as_list()->items.size());
                              return result;
                            },
                            1});
  }
  if (object.as_dict() == nullptr) return std::nullopt;
  const int depth = object.depth() + 1;
  if (name == "items") return Value::callable({name, [object](const Arguments&) { return pairs_of(object); }, depth});
  if (name == "keys") {
    return Value::callable(
        {name, [object, &budget](const Arguments&) { return Value::list(items_of(object, budget)); }, depth});
  }
  if (name == "values") {
    return Value::callable({name,
                            [object](const Arguments&) {
                              std::vector<Value> values;
                              for (const auto& item : object.as_dict()->items) values.push_back(item.second);
                              return Value::list(std::move(values));
                            },
                            depth});
  }
  if (name != "get") return std::nullopt;
  return Value::callable({name,
                          [object, name](const Arguments& arguments) {
                            const Parameters parameters(name, arguments, {"key", "default"});
                            const Value* found = object.as_dict()->find(parameters.text(0, ""));
                            if (found != nullptr) return *found;
                            return parameters.find(1) == nullptr ? Value(None{}) : *parameters.find(1);
                          },
                          depth});
}

}  // namespace flashmla::runner::jinja
