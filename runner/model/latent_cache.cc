#include "runner/model/latent_cache.h"

#include <new>
#include <string>

#include "runner/checkpoint/machine_memory.h"

namespace flashmla::runner {

namespace {

Status no_room(int64_t pages, int64_t page_size, int64_t bytes, int64_t available) {
  return {StatusCode::kOutOfMemory, "cache: " + std::to_string(pages) + " pages of " + std::to_string(page_size) +
                                        " tokens " + memory_text(bytes, available) + "; lower --max-model-len"};
}

}  // namespace

Result<LatentCache> LatentCache::make(const ModelConfig& config, DType dtype, int64_t page_size, int64_t pages) {
  LatentCache cache;
  cache.dtype_ = dtype;
  cache.page_size_ = page_size;
  cache.pages_ = pages;
  cache.width_ = config.kv_lora_rank + config.qk_rope_dim;
  const int64_t bytes = config.layers * pages * page_size * cache.width_ * dtype_bytes(dtype);
  // Linux promises more memory than it has and ends the process when it is used: asked before.
  const int64_t available = available_memory();
  if (bytes > available) return no_room(pages, page_size, bytes, available);
  try {
    cache.memory_ = allocate_weights(bytes);
    cache.free_.reserve(static_cast<size_t>(pages));
  } catch (const std::bad_alloc&) {
    return no_room(pages, page_size, bytes, available);
  }
  for (int64_t page = pages; page-- > 0;) cache.free_.push_back(static_cast<int32_t>(page));
  return cache;
}

TensorView LatentCache::layer(int64_t index) const {
  auto* base = static_cast<std::byte*>(memory_.get()) + index * pages_ * page_size_ * width_ * dtype_bytes(dtype_);
  return TensorView::contiguous(base, dtype_, {pages_, page_size_, 1, width_});
}

bool LatentCache::reserve(std::vector<int32_t>& table, int64_t tokens) {
  const int64_t wanted = (tokens + page_size_ - 1) / page_size_ - static_cast<int64_t>(table.size());
  if (wanted > free_pages()) return false;
  for (int64_t i = 0; i < wanted; ++i) {
    table.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void LatentCache::release(std::vector<int32_t>& table) {
  free_.insert(free_.end(), table.begin(), table.end());
  table.clear();
}

}  // namespace flashmla::runner
