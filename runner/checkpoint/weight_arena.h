// Memory for many weights in few large blocks: a model of a thousand experts would otherwise need more mappings than
// Linux grants a process (65,530).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runner/linear/matrix.h"

namespace flashmla::runner {

class WeightArena {
 public:
  // `bytes` at a 64-byte boundary; the block lives as long as any part of it. Throws std::bad_alloc.
  std::shared_ptr<std::byte> allocate(int64_t bytes) {
    if (used_ + bytes > size_) {
      size_ = std::max(kBlockBytes, bytes);
      used_ = 0;
      block_ = allocate_weights(size_);
    }
    std::shared_ptr<std::byte> part(block_, static_cast<std::byte*>(block_.get()) + used_);
    used_ += (bytes + 63) / 64 * 64;
    return part;
  }

 private:
  static constexpr int64_t kBlockBytes = int64_t{64} << 20;

  std::shared_ptr<void> block_;
  int64_t size_ = 0;
  int64_t used_ = 0;
};

}  // namespace flashmla::runner
