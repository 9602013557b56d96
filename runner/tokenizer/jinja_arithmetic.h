// Operators of chat templates, with Python's meaning.
#pragma once

#include <string>

#include "runner/tokenizer/jinja_builtins.h"
#include "runner/tokenizer/jinja_value.h"

namespace flashmla::runner::jinja {

// + - * / // % ~
Value arithmetic(const std::string& symbol, const Value& left, const Value& right, Budget& budget);
// == != < <= > >= in, not in
bool compare(const std::string& symbol, const Value& left, const Value& right, Budget& budget);

}  // namespace flashmla::runner::jinja
