// Structs of the C API that begin with their size: older (smaller) and newer (larger) callers than this library.
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "core/text.h"
#include "flashmla/status.h"

namespace flashmla {

// No struct comes near it: a larger struct_size was never initialised, and the tail must not be looked at.
inline constexpr size_t kMaxStructSize = 4096;

// `first_size`: the size that the struct had in the version that introduced it.
template <class Struct>
Status check_struct_size(std::string_view argument, size_t got, size_t first_size) {
  if (got >= first_size && got <= kMaxStructSize && got % alignof(Struct) == 0) return {};
  return invalid(
      argument, concat("struct_size ", got),
      concat("its sizeof (", first_size, " .. ", sizeof(Struct), " known here, multiples of ", alignof(Struct), ")"));
}

// Copies the caller's struct. Fields that an older caller does not have are 0; fields that only a newer caller has must
// be 0, because this library would ignore what they ask for.
template <class Struct>
Status read_struct(std::string_view argument, const Struct* from, size_t first_size, Struct& to) {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  if (from == nullptr) return invalid(argument, "a null pointer", "a pointer to the struct");
  size_t size = 0;
  std::memcpy(&size, from, sizeof size);
  FLASHMLA_RETURN_IF_ERROR(check_struct_size<Struct>(argument, size, first_size));
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      return unsupported(
          argument, concat("struct_size ", size, " with a non-zero byte at offset ", i),
          concat("fields up to byte ", sizeof(Struct), ", later ones 0 (the caller is newer than this library)"));
    }
  }
  to = Struct{};
  std::memcpy(&to, from, size < sizeof(Struct) ? size : sizeof(Struct));
  return {};
}

// Fills the caller's struct up to its own size; fields that only a newer caller has become 0. struct_size stays.
template <class Struct>
Status write_struct(std::string_view argument, const Struct& from, size_t first_size, Struct* to) {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  if (to == nullptr) return invalid(argument, "a null pointer", "a pointer to the struct");
  size_t size = 0;
  std::memcpy(&size, to, sizeof size);
  FLASHMLA_RETURN_IF_ERROR(check_struct_size<Struct>(argument, size, first_size));
  const size_t known = size < sizeof(Struct) ? size : sizeof(Struct);
  auto* bytes = reinterpret_cast<unsigned char*>(to);
  std::memcpy(bytes + sizeof size, reinterpret_cast<const unsigned char*>(&from) + sizeof size, known - sizeof size);
  std::memset(bytes + known, 0, size - known);
  return {};
}

}  // namespace flashmla
