// Filters, tests, methods and functions of chat templates.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/tokenizer/jinja_value.h"

namespace flashmla::runner::jinja {

// A template comes with a download: its time and memory are bounded. One step for each expression and each 64 bytes of
// text built or compared.
class Budget {
 public:
  void charge(size_t bytes);

 private:
  uint64_t steps_ = 0;
};

Value call_filter(const std::string& name, const Value& value, const Arguments& arguments, Budget& budget);
bool call_test(const std::string& name, const Value& value, const Value* argument, Budget& budget);
// The method of a text or dict, bound to it. nullopt: it has none of that name.
std::optional<Value> find_method(const Value& object, const std::string& name, Budget& budget);
Value range(const Arguments& arguments, Budget& budget);

// The items of a list, the keys of a dict, the characters of a text, nothing of an undefined value.
std::vector<Value> items_of(const Value& value, Budget& budget);
bool contains(const Value& container, const Value& item, Budget& budget);
// Python's indices start:stop:step for `size` items.
std::vector<int64_t> slice_indices(int64_t size, std::optional<int64_t> start, std::optional<int64_t> stop,
                                   int64_t step);
std::vector<std::string> characters(const std::string& text);

}  // namespace flashmla::runner::jinja
