// The runner's tokenizer as flashmla._native.Tokenizer.
#pragma once

#include <nanobind/nanobind.h>

namespace flashmla::python {

void add_tokenizer(nanobind::module_& module);

}  // namespace flashmla::python
