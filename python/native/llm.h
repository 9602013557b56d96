// The model runner for Python: loading and generation.
#pragma once

#include <nanobind/nanobind.h>

namespace flashmla::python {

// Adds the class Llm, which python/flashmla/_llm.py gives its Python form.
void add_llm(nanobind::module_& module);

}  // namespace flashmla::python
