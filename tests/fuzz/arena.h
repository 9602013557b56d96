// Memory whose first and last byte touch pages that cannot be accessed: a stray read or write ends the process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashmla::fuzz {

class Arena {
 public:
  explicit Arena(int64_t bytes);  // rounded up to whole pages; lives until the process ends

  int64_t bytes() const { return bytes_; }
  // `bytes` that end (else start) at the forbidden page; nullptr when they do not fit. `alignment` may leave a gap at
  // the end; it is what the caller's element type or the contract asks for.
  std::byte* place(int64_t bytes, int64_t alignment, bool at_end) const;
  // An aligned address inside the forbidden page: never to be accessed.
  std::byte* forbidden() const { return begin_ + bytes_; }

 private:
  std::byte* begin_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace flashmla::fuzz
