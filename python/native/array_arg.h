// Python arrays as tensor views: anything that speaks DLPack or the buffer protocol, or a DLPack capsule. No copies.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <utility>

#include "flashmla/context.h"
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
  const char* name() const { return name_; }
  Device device() const { return device_; }

 private:
  const char* name_;
  Device device_{};
  Array array_;
  View view_{};
};

using InputArray = ArrayArg<nb::ndarray<nb::ro>, ConstTensorView>;
using OutputArray = ArrayArg<nb::ndarray<>, TensorView>;

std::string device_text(Device device);  // "the CPU", "cuda:0"

// Where the arrays of a call lie that are given: all in one place, or ValueError names the one that is not.
template <class... Arrays>
Device common_device(const Arrays&... arrays) {
  Device common{};
  bool found = false;
  const auto add = [&](const auto& array) {
    if (!array.view().given()) return;
    if (!std::exchange(found, true)) common = array.device();
    if (array.device().type == common.type && array.device().index == common.index) return;
    raise(PyExc_ValueError, std::string(array.name()) + ": got an array on " + device_text(array.device()) +
                                " in a call with arrays on " + device_text(common) + "; want one device");
  };
  (add(arrays), ...);
  return common;
}

}  // namespace flashmla::python
