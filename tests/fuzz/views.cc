#include "views.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace flashmla::fuzz {

int64_t hostile_int(Bytes& bytes) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kInt32 = std::numeric_limits<int32_t>::max();
  constexpr int64_t kValues[] = {0,       1,    2,         3,        -1,           -2,       kInt32,  kInt32 + 1,
                                 -kInt32, kMax, -kMax - 1, kMax / 2, kMax / 2 + 1, kMax / 8, 1 << 16, int64_t{1} << 40};
  switch (bytes.below(4)) {
    case 0: return bytes.any<int64_t>();
    case 1: return bytes.between(-16, 64);
    default: return bytes.pick(kValues);
  }
}

template <class Void>
BasicTensorView<Void> any_view(Bytes& bytes, DType dtype, std::initializer_list<int64_t> sizes, ViewKind kind) {
  auto view = BasicTensorView<Void>::contiguous(nullptr, dtype, sizes);
  if (bytes.below(2) == 0 || view.ndim == 0) return view;
  // Dimensions from the innermost in memory to the outermost; the last stays innermost unless it is free.
  int order[kMaxDims];
  std::iota(order, order + view.ndim, 0);
  std::reverse(order, order + view.ndim);
  const int first_free = kind.free_last ? 0 : 1;
  for (int i = first_free; i + 1 < view.ndim; ++i) {
    std::swap(order[i], order[i + static_cast<int>(bytes.below(view.ndim - i))]);
  }
  int64_t step = 1;
  for (int i = 0; i < view.ndim; ++i) {
    const int d = order[i];
    if (i > 0 || kind.free_last) {
      step = (step + kind.align - 1) / kind.align * kind.align + bytes.below(3) * kind.align;
      if (kind.written && step == 0) step = kind.align;
    }
    view.stride[d] = step;
    step *= std::max<int64_t>(view.shape[d], 1);
    if (i < first_free) continue;
    if (bytes.one_in(8)) view.stride[d] = -view.stride[d];
    if (!kind.written && bytes.one_in(8)) view.stride[d] = 0;
    if (view.shape[d] <= 1 && bytes.one_in(4)) view.stride[d] = hostile_int(bytes);  // any value there is legal
  }
  if (extent_of(view) || !bytes.one_in(4)) return view;
  for (int d = 0; d < view.ndim; ++d)
    view.stride[d] = hostile_int(bytes);  // nor do they mean anything without elements
  return view;
}

template <class Void>
void damage(Bytes& bytes, BasicTensorView<Void>& view) {
  const auto d = static_cast<size_t>(bytes.below(kMaxDims));
  switch (bytes.below(8)) {
    case 0: view.dtype = static_cast<DType>(bytes.below(2) == 0 ? bytes.below(8) : hostile_int(bytes)); break;
    case 1: view.ndim = static_cast<int32_t>(bytes.below(2) == 0 ? bytes.below(6) : hostile_int(bytes)); break;
    case 2: view.data = nullptr; break;
    case 3:  // misaligned; in integers, since the pointer may be null by now
      view.data =
          reinterpret_cast<Void*>(reinterpret_cast<uintptr_t>(view.data) + static_cast<uintptr_t>(bytes.below(16)));
      break;
    case 4:
    case 5: view.shape[d] = hostile_int(bytes); break;
    default: view.stride[d] = hostile_int(bytes); break;
  }
}

std::optional<Extent> extent_of(const ConstTensorView& view) {
  __int128 low = 0;
  __int128 high = 1;
  for (int d = 0; d < view.ndim; ++d) {
    if (view.shape[d] <= 0) return std::nullopt;
    const __int128 reach = static_cast<__int128>(view.stride[d]) * (view.shape[d] - 1);
    (reach < 0 ? low : high) += reach;
  }
  low *= dtype_bytes(view.dtype);
  high *= dtype_bytes(view.dtype);
  constexpr __int128 kMost = std::numeric_limits<int64_t>::max();
  if (low < -kMost || high > kMost) return std::nullopt;
  return Extent{static_cast<int64_t>(low), static_cast<int64_t>(high)};
}

template <class Void>
bool Placer::place(Bytes& bytes, BasicTensorView<Void>& view) const {
  if (!view.given() || view.data == nullptr) return true;
  const std::optional<Extent> extent = extent_of(view);
  if (!extent) return true;  // no element: the forbidden address is as good as any
  const int64_t size = extent->high - extent->low;
  if (size < 0 || size > arena_.bytes()) return false;
  const int64_t alignment = size % 16 == 0 && extent->low % 16 == 0 ? 16 : dtype_bytes(view.dtype);
  std::byte* memory = arena_.place(size, alignment, bytes.below(2) == 0);
  if (memory == nullptr) return false;
  view.data = memory - extent->low;
  return true;
}

template TensorView any_view<void>(Bytes&, DType, std::initializer_list<int64_t>, ViewKind);
template ConstTensorView any_view<const void>(Bytes&, DType, std::initializer_list<int64_t>, ViewKind);
template void damage<void>(Bytes&, TensorView&);
template void damage<const void>(Bytes&, ConstTensorView&);
template bool Placer::place<void>(Bytes&, TensorView&) const;
template bool Placer::place<const void>(Bytes&, ConstTensorView&) const;

}  // namespace flashmla::fuzz
