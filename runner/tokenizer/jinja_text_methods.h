// Python's methods of str, as far as chat templates use them.
#pragma once

#include <string>

#include "runner/tokenizer/jinja_value.h"

namespace flashmla::runner::jinja {

bool is_text_method(const std::string& name);
// `text` holds a text. Throws TemplateError on wrong arguments. upper, lower, capitalize and title take ASCII alone.
Value text_method(const Value& text, const std::string& name, const Arguments& arguments);

}  // namespace flashmla::runner::jinja
