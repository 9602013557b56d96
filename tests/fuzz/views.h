// Tensor views for the fuzz targets: legal ones with odd strides, damage to them, and their place in guarded memory.
#pragma once

#include <initializer_list>
#include <optional>

#include "arena.h"
#include "bytes.h"
#include "flashmla/tensor.h"

namespace flashmla::fuzz {

// Integers at the edges of what the checks compare and multiply.
int64_t hostile_int(Bytes& bytes);

struct ViewKind {
  int64_t align = 1;     // strides are multiples of it, in elements
  bool written = false;  // no stride 0
  bool free_last = false;
};

// A legal view of any layout: dimensions in any memory order, gaps, negative and zero strides.
template <class Void>
BasicTensorView<Void> any_view(Bytes& bytes, DType dtype, std::initializer_list<int64_t> sizes, ViewKind kind = {});

// Damages one field of the view.
template <class Void>
void damage(Bytes& bytes, BasicTensorView<Void>& view);

// First and last byte + 1 of a view, relative to its data pointer; nullopt when it has no element or the numbers are
// beyond what an address can hold.
struct Extent {
  int64_t low = 0;
  int64_t high = 0;
};
std::optional<Extent> extent_of(const ConstTensorView& view);

// Where the data pointers point before a check has accepted the view, and after.
class Placer {
 public:
  explicit Placer(int64_t arena_bytes) : arena_(arena_bytes) {}

  template <class Void>
  void forbid(BasicTensorView<Void>& view) const {
    view.data = arena_.forbidden();
  }
  // Moves a view with elements into the arena. False: does not fit.
  template <class Void>
  bool place(Bytes& bytes, BasicTensorView<Void>& view) const;

 private:
  Arena arena_;
};

}  // namespace flashmla::fuzz
