// Element types and non-owning strided views. A view needs to live during the call only.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "flashmla/export.h"

namespace flashmla {

enum class DType : int32_t {
  kFloat32 = 0,
  kFloat16 = 1,
  kBFloat16 = 2,
  kFloat8E4M3 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUInt8 = 6,
};

// "fp32", "fp16", "bf16", "fp8_e4m3", "int32", "int64", "uint8"; "unknown" for any other value.
FLASHMLA_API const char* dtype_name(DType dtype) noexcept;
// Bytes of one element; 0 for an unknown value.
FLASHMLA_API int64_t dtype_bytes(DType dtype) noexcept;

inline constexpr int kMaxDims = 4;

// Void is `void` (writable) or `const void` (read only). Strides are in elements and may be any value where the
// matching size is 0 or 1. A default-constructed view means "not given".
template <class Void>
struct BasicTensorView {
  Void* data = nullptr;
  DType dtype = DType::kFloat32;
  int32_t ndim = 0;
  std::array<int64_t, kMaxDims> shape{};
  std::array<int64_t, kMaxDims> stride{};

  bool given() const noexcept { return ndim != 0; }

  // A row-major view of `sizes` (at most kMaxDims of them).
  static BasicTensorView contiguous(Void* data, DType dtype, std::initializer_list<int64_t> sizes) {
    BasicTensorView view{data, dtype, 0, {}, {}};
    for (int64_t size : sizes) {
      if (view.ndim < kMaxDims) view.shape[view.ndim++] = size;
    }
    int64_t step = 1;
    for (int d = view.ndim - 1; d >= 0; --d) {
      view.stride[d] = step;
      step *= view.shape[d];
    }
    return view;
  }

  // A template, because nvcc warns of a plain one that the read-only view can never call.
  template <class Own = Void>
  requires(!std::is_const_v<Own>) operator BasicTensorView<const void>() const {  // NOLINT(google-explicit-constructor)
    return {data, dtype, ndim, shape, stride};
  }
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

}  // namespace flashmla
