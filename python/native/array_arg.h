// Python arrays as tensor views: anything that speaks DLPack or the buffer protocol, or a DLPack capsule. No copies.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "flashmla/status.h"
#include "flashmla/tensor.h"

namespace flashmla::python {

namespace nb = nanobind;

// Raises the Python exception of this type with this text.
[[noreturn]] void raise(PyObject* type, const std::string& text);

// Nothing when ok; else ValueError, NotImplementedError or RuntimeError with the library's text.
void raise_if_error(const Status& status);

// One array argument, held for the length of a call; None gives the view "not given". The view points into memory that
// the producer owns: an Array of `nb::ndarray<>` is refused when the producer calls it read only.
template <class Array, class View>
class ArrayArg {
 public:
  // uint16_is_bf16: the caller said dtype='bf16', which NumPy can express as uint16 only.
  ArrayArg(const char* argument, nb::handle array, bool uint16_is_bf16);

  const View& view() const { return view_; }

 private:
  Array array_;
  View view_{};
};

using InputArray = ArrayArg<nb::ndarray<nb::ro>, ConstTensorView>;
using OutputArray = ArrayArg<nb::ndarray<>, TensorView>;

}  // namespace flashmla::python
