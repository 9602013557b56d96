// The paged latent cache of all layers and who owns its pages.
#pragma once

#include <cstdint>
#include <vector>

#include "flashmla/flashmla.h"
#include "runner/checkpoint/model_config.h"
#include "runner/linear/matrix.h"

namespace flashmla::runner {

class LatentCache {
 public:
  // `dtype`: fp32 or bf16. kOutOfMemory when the machine has no room for `pages` pages.
  static Result<LatentCache> make(const ModelConfig& config, DType dtype, int64_t page_size, int64_t pages);

  DType dtype() const { return dtype_; }
  int64_t page_size() const { return page_size_; }
  int64_t pages() const { return pages_; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  // [pages, page, 1, latent + rope] of one layer.
  TensorView layer(int64_t index) const;

  // Extends `table` until it holds `tokens` tokens; false, and nothing taken, when too few pages are free.
  bool reserve(std::vector<int32_t>& table, int64_t tokens);
  void release(std::vector<int32_t>& table);

 private:
  DType dtype_ = DType::kFloat32;
  int64_t page_size_ = 0;
  int64_t pages_ = 0;
  int64_t width_ = 0;
  std::shared_ptr<void> memory_;
  std::vector<int32_t> free_;
};

}  // namespace flashmla::runner
