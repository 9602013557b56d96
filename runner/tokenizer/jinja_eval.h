// Runs a parsed chat template.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runner/tokenizer/jinja_ast.h"

namespace flashmla::runner::jinja {

// `variables`: what the template sees beside its functions namespace, range and raise_exception. Throws TemplateError.
std::string render_template(const Block& block, const std::vector<std::pair<std::string, Value>>& variables);

}  // namespace flashmla::runner::jinja
