#include "array_arg.h"

#include <algorithm>
#include <type_traits>

namespace flashmla::python {

namespace {

constexpr int kDLFloat8E4M3FN = 10;  // a type code of DLPack that nanobind has no name for

std::string dlpack_dtype_text(nb::dlpack::dtype dtype) {
  const std::string bits = std::to_string(dtype.bits);
  switch (static_cast<nb::dlpack::dtype_code>(dtype.code)) {
    case nb::dlpack::dtype_code::Int: return "int" + bits;
    case nb::dlpack::dtype_code::UInt: return "uint" + bits;
    case nb::dlpack::dtype_code::Float: return "fp" + bits;
    case nb::dlpack::dtype_code::Bfloat: return "bf" + bits;
    case nb::dlpack::dtype_code::Complex: return "complex" + bits;
    case nb::dlpack::dtype_code::Bool: return "bool";
    default: return "of DLPack code " + std::to_string(dtype.code) + " and " + bits + " bits";
  }
}

DType element_type(const char* argument, nb::dlpack::dtype dtype, bool uint16_is_bf16) {
  const auto is = [dtype](nb::dlpack::dtype_code code, int bits) {
    return dtype.code == static_cast<uint8_t>(code) && dtype.bits == bits;
  };
  if (dtype.lanes == 1) {
    if (is(nb::dlpack::dtype_code::Bfloat, 16)) return DType::kBFloat16;
    if (is(nb::dlpack::dtype_code::Float, 16)) return DType::kFloat16;
    if (is(nb::dlpack::dtype_code::Float, 32)) return DType::kFloat32;
    if (is(nb::dlpack::dtype_code::Int, 32)) return DType::kInt32;
    if (is(nb::dlpack::dtype_code::Int, 64)) return DType::kInt64;
    if (is(nb::dlpack::dtype_code::UInt, 8)) return DType::kUInt8;
    if (is(nb::dlpack::dtype_code::UInt, 16) && uint16_is_bf16) return DType::kBFloat16;
    if (dtype.code == kDLFloat8E4M3FN && dtype.bits == 8) return DType::kFloat8E4M3;
  }
  raise(PyExc_ValueError, std::string(argument) + ": got dtype " + dlpack_dtype_text(dtype) +
                              "; want fp32, fp16 or bf16 (NumPy: uint16 with dtype='bf16') for numbers, int32 for "
                              "tables and lengths, int64 for slots");
}

}  // namespace

void raise(PyObject* type, const std::string& text) {
  PyErr_SetString(type, text.c_str());
  throw nb::python_error();
}

void raise_if_error(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return;
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
    case StatusCode::kWorkspaceTooSmall:
    case StatusCode::kNotFound: raise(PyExc_ValueError, status.text());
    case StatusCode::kUnsupported: raise(PyExc_NotImplementedError, status.text());
    default: raise(PyExc_RuntimeError, status.text());
  }
}

std::string device_text(Device device) {
  return device.type == DeviceType::kCPU ? "the CPU" : "cuda:" + std::to_string(device.index);
}

template <class Array, class View>
ArrayArg<Array, View>::ArrayArg(const char* argument, nb::handle array, bool uint16_is_bf16) : name_(argument) {
  if (array.is_none()) return;
  const std::string name = argument;
  if (!nb::try_cast(array, array_, /*convert=*/false)) {
    constexpr bool kWritten = std::is_same_v<View, TensorView>;
    raise(PyExc_ValueError, name + ": got " + nb::type_name(array.type()).c_str() + ", which gives no " +
                                (kWritten ? "writable " : "") + "memory through DLPack or the buffer protocol");
  }
  if (array_.device_type() == nb::device::cuda::value) {
#ifdef FLASHMLA_HAS_CUDA
    device_ = {DeviceType::kCUDA, array_.device_id()};
#else
    raise(PyExc_NotImplementedError, name + ": got an array on cuda:" + std::to_string(array_.device_id()) +
                                         "; this build of flashmla has no CUDA back end and takes arrays on the CPU");
#endif
  } else if (array_.device_type() != nb::device::cpu::value && array_.device_type() != nb::device::cuda_host::value) {
    raise(PyExc_NotImplementedError, name + ": got an array on DLPack device type " +
                                         std::to_string(array_.device_type()) +
                                         "; flashmla takes arrays on the CPU and on NVIDIA GPUs");
  }
  const auto ndim = static_cast<int32_t>(array_.ndim());
  if (ndim < 1 || ndim > kMaxDims) {
    raise(PyExc_ValueError,
          name + ": got " + std::to_string(array_.ndim()) + " dimensions; want 1 to " + std::to_string(kMaxDims));
  }
  view_.data = array_.data();
  view_.dtype = element_type(argument, array_.dtype(), uint16_is_bf16);
  view_.ndim = ndim;
  bool empty = false;
  for (int32_t d = 0; d < ndim; ++d) {
    view_.shape[d] = static_cast<int64_t>(array_.shape(static_cast<size_t>(d)));
    view_.stride[d] = array_.stride(static_cast<size_t>(d));
    empty = empty || view_.shape[d] == 0;
  }
  // Frameworks give an array without elements any strides, NumPy zeros; a row-major one's are as true and pass checks.
  for (int64_t step = 1, d = ndim - 1; empty && d >= 0; --d) {
    view_.stride[d] = step;
    step *= std::max<int64_t>(view_.shape[d], 1);
  }
}

template class ArrayArg<nb::ndarray<nb::ro>, ConstTensorView>;
template class ArrayArg<nb::ndarray<>, TensorView>;

}  // namespace flashmla::python
