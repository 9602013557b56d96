#include "runner/tokenizer/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "runner/tokenizer/utf8.h"

namespace flashmla::runner::jinja {

namespace {

constexpr int kMostNested = 128;  // values are copied, printed and freed by recursion

int checked_depth(int depth) {
  if (depth > kMostNested) throw TemplateError("values nested more than " + std::to_string(kMostNested) + " deep");
  return depth;
}

}  // namespace

Value Value::list(std::vector<Value> items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return Value(Data(std::make_shared<const List>(List{std::move(items), checked_depth(depth + 1)})));
}

Value Value::dict(std::vector<std::pair<std::string, Value>> items) {
  int depth = 0;
  for (const auto& [key, value] : items) depth = std::max(depth, value.depth());
  return Value(Data(std::make_shared<const Dict>(Dict{std::move(items), checked_depth(depth + 1)})));
}

Value Value::callable(Callable callable) {
  checked_depth(callable.depth);
  return Value(Data(std::make_shared<const Callable>(std::move(callable))));
}

int Value::depth() const {
  if (const List* list = as_list()) return list->depth;
  if (const Dict* dict = as_dict()) return dict->depth;
  if (const Callable* callable = as_callable()) return callable->depth;
  return 0;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return to_number() != 0;
  if (const std::string* text = as_text()) return !text->empty();
  if (const List* list = as_list()) return !list->items.empty();
  if (const Dict* dict = as_dict()) return !dict->items.empty();
  return true;
}

const char* Value::type_name() const {
  constexpr const char* kNames[] = {"undefined", "NoneType", "bool", "int",       "float",
                                    "str",       "list",     "dict", "namespace", "function"};
  return kNames[data_.index()];
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_integer() && b.is_integer() ? a.to_integer() == b.to_integer() : a.to_number() == b.to_number();
  }
  if (a.as_text() != nullptr && b.as_text() != nullptr) return *a.as_text() == *b.as_text();
  if (const List* x = a.as_list(), *y = b.as_list(); x != nullptr && y != nullptr) {
    return std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(), equal);
  }
  if (const Dict* x = a.as_dict(), *y = b.as_dict(); x != nullptr && y != nullptr) {
    return x->items.size() == y->items.size() && std::all_of(x->items.begin(), x->items.end(), [&](const auto& item) {
             const Value* other = y->find(item.first);
             return other != nullptr && equal(item.second, *other);
           });
  }
  if (a.as_namespace() != nullptr) return a.as_namespace() == b.as_namespace();
  if (a.as_callable() != nullptr) return a.as_callable() == b.as_callable();
  return (a.is_undefined() && b.is_undefined()) || (a.is_none() && b.is_none());
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[64];
  const double size = std::abs(value);
  const bool scientific = size != 0 && (size < 1e-4 || size >= 1e16);
  const auto end = std::to_chars(digits, digits + sizeof(digits), value,
                                 scientific ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(digits, end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

namespace {

// Python's repr of a text, of which the characters that Python escapes outside ASCII are left as they are.
std::string repr(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    char escape[8];
    if (c == quote || c == '\\') {
      (result += '\\') += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      std::snprintf(escape, sizeof(escape), "\\x%02x", byte);
      result += escape;
    } else {
      result += c;
    }
  }
  return result + quote;
}

std::string repr(const Value& value) { return value.as_text() != nullptr ? repr(*value.as_text()) : to_text(value); }

std::string json_string(const std::string& text, bool ensure_ascii) {
  return nlohmann::json(text).dump(-1, ' ', ensure_ascii, nlohmann::json::error_handler_t::replace);
}

class JsonWriter {
 public:
  JsonWriter(int64_t indent, bool ensure_ascii) : indent_(indent), ensure_ascii_(ensure_ascii) {}

  void write(const Value& value) {
    if (value.is_none()) {
      text_ += "null";
    } else if (value.as<bool>() != nullptr) {
      text_ += *value.as<bool>() ? "true" : "false";
    } else if (value.is_integer()) {
      text_ += std::to_string(value.to_integer());
    } else if (value.is_number()) {
      const double number = value.to_number();
      text_ += std::isnan(number)   ? "NaN"
               : std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                    : number_text(number);
    } else if (value.as_text() != nullptr) {
      text_ += json_string(*value.as_text(), ensure_ascii_);
    } else if (const List* list = value.as_list()) {
      items('[', ']', list->items, [&](const Value& item) { write(item); });
    } else if (const Dict* dict = value.as_dict()) {
      items('{', '}', dict->items, [&](const auto& item) {
        text_ += json_string(item.first, ensure_ascii_) + ": ";
        write(item.second);
      });
    } else {
      throw TemplateError(std::string("tojson: got ") + value.type_name() + "; want a value that JSON has");
    }
  }

  std::string text_;

 private:
  template <class Items, class Write>
  void items(char open, char close, const Items& items, Write write_item) {
    text_ += open;
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) text_ += indent_ < 0 ? ", " : ",";
      new_line();
      write_item(items[i]);
    }
    --level_;
    if (!items.empty()) new_line();
    text_ += close;
  }
  void new_line() {
    if (indent_ >= 0) text_ += '\n' + std::string(static_cast<size_t>(indent_ * level_), ' ');
  }

  int64_t indent_;
  bool ensure_ascii_;
  int64_t level_ = 0;
};

}  // namespace

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.as<bool>() != nullptr) return *value.as<bool>() ? "True" : "False";
  if (value.is_integer()) return std::to_string(value.to_integer());
  if (value.is_number()) return number_text(value.to_number());
  if (value.as_text() != nullptr) return *value.as_text();
  std::string text;
  if (const List* list = value.as_list()) {
    for (const Value& item : list->items) text += (text.empty() ? "" : ", ") + repr(item);
    return "[" + text + "]";
  }
  if (const Dict* dict = value.as_dict()) {
    for (const auto& [key, item] : dict->items) text += (text.empty() ? "" : ", ") + repr(key) + ": " + repr(item);
    return "{" + text + "}";
  }
  throw TemplateError(std::string("got ") + value.type_name() + " to print; want a text, number, list or dict");
}

std::string to_json(const Value& value, int64_t indent, bool ensure_ascii) {
  constexpr int64_t kMostIndent = 64;
  if (indent > kMostIndent) throw TemplateError("tojson: got indent " + std::to_string(indent) + "; want at most 64");
  JsonWriter writer(indent, ensure_ascii);
  writer.write(value);
  return writer.text_;
}

namespace {

Value from_json_at(const nlohmann::ordered_json& json, int depth) {
  checked_depth(depth);
  using Json = nlohmann::ordered_json;
  switch (json.type()) {
    case Json::value_t::boolean: return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer: return Value::integer(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) return Value::number(json.get<double>());
      return Value::integer(json.get<int64_t>());
    case Json::value_t::number_float: return Value::number(json.get<double>());
    case Json::value_t::string: return Value::text(json.get<std::string>());
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) items.push_back(from_json_at(item, depth + 1));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<std::pair<std::string, Value>> items;
      for (const auto& [key, item] : json.items()) items.emplace_back(key, from_json_at(item, depth + 1));
      return Value::dict(std::move(items));
    }
    default: return None{};
  }
}

}  // namespace

Value from_json(const nlohmann::ordered_json& json) { return from_json_at(json, 0); }

}  // namespace flashmla::runner::jinja
