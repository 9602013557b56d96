#include "arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace flashmla::fuzz {

Arena::Arena(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  bytes_ = (bytes + page - 1) / page * page;
  void* memory = mmap(nullptr, static_cast<size_t>(bytes_ + 2 * page), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  begin_ = static_cast<std::byte*>(memory) + page;
  if (mprotect(begin_, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE) != 0) std::abort();
  std::memset(begin_, 0x3c, static_cast<size_t>(bytes_));  // a small finite number in bf16, fp16 and fp32
}

std::byte* Arena::place(int64_t bytes, int64_t alignment, bool at_end) const {
  if (bytes < 0 || bytes > bytes_) return nullptr;
  return at_end ? begin_ + (bytes_ - bytes) / alignment * alignment : begin_;
}

}  // namespace flashmla::fuzz
