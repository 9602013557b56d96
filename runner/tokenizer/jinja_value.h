// The values that a chat template computes with: Python's, as far as templates use them. Lists and dicts are immutable
// and shared; namespaces are owned by the evaluation (jinja_eval.h), so that no values can own each other in a ring.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace flashmla::runner::jinja {

// Thrown inside the interpreter alone; ChatTemplate turns it into a Status.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Value;
struct List;
struct Dict;
struct Namespace;
struct Callable;

struct Undefined {
  std::string name;  // of what was looked up, for errors
};
struct None {};
using Text = std::shared_ptr<const std::string>;

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<const List>,
                            std::shared_ptr<const Dict>, Namespace*, std::shared_ptr<const Callable>>;

  Value() : data_(Undefined{}) {}
  Value(Undefined value) : data_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Value(None value) : data_(value) {}                  // NOLINT(google-explicit-constructor)
  Value(Namespace* value) : data_(value) {}            // NOLINT(google-explicit-constructor)
  static Value boolean(bool value) { return Value(Data(value)); }
  static Value integer(int64_t value) { return Value(Data(value)); }
  static Value number(double value) { return Value(Data(value)); }
  static Value text(std::string value) { return Value(Data(std::make_shared<const std::string>(std::move(value)))); }
  static Value list(std::vector<Value> items);
  static Value dict(std::vector<std::pair<std::string, Value>> items);
  static Value callable(Callable callable);

  template <class T>
  const T* as() const {
    return std::get_if<T>(&data_);
  }
  const std::string* as_text() const { return pointee<std::string>(); }
  const List* as_list() const { return pointee<List>(); }
  const Dict* as_dict() const { return pointee<Dict>(); }
  const Callable* as_callable() const { return pointee<Callable>(); }
  Namespace* as_namespace() const { return as<Namespace*>() == nullptr ? nullptr : *as<Namespace*>(); }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  // bool counts, as in Python.
  bool is_integer() const { return as<bool>() != nullptr || as<int64_t>() != nullptr; }
  bool is_number() const { return is_integer() || as<double>() != nullptr; }
  int64_t to_integer() const { return as<bool>() != nullptr ? *as<bool>() : *as<int64_t>(); }
  double to_number() const { return is_integer() ? static_cast<double>(to_integer()) : *as<double>(); }

  bool truthy() const;
  const char* type_name() const;  // Python's
  int depth() const;              // of nested lists and dicts

 private:
  explicit Value(Data data) : data_(std::move(data)) {}
  template <class T>
  const T* pointee() const {
    const auto* pointer = std::get_if<std::shared_ptr<const T>>(&data_);
    return pointer == nullptr ? nullptr : pointer->get();
  }
  Data data_;
};

struct List {
  std::vector<Value> items;
  int depth = 1;
};

struct Dict {
  std::vector<std::pair<std::string, Value>> items;  // in order
  int depth = 1;
  const Value* find(std::string_view key) const;
};

struct Namespace {
  std::map<std::string, Value> items;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
  int depth = 1;  // of what `call` holds, plus one
};

bool equal(const Value& a, const Value& b);
// Python's str() and json.dumps(ensure_ascii=False); indent below 0: on one line.
std::string to_text(const Value& value);
std::string to_json(const Value& value, int64_t indent, bool ensure_ascii);
Value from_json(const nlohmann::ordered_json& json);

// "3.0", "1e+16"
std::string number_text(double value);

}  // namespace flashmla::runner::jinja
