// A text that the C API lends to the calling thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>

namespace flashmla {

// Fixed memory without a destructor, on purpose: it takes no memory at the time of an error, and a thread-local
// destructor would keep the library from being unloaded while the thread lives. Longer texts end in "...".
class ThreadText {
 public:
  const char* set(std::string_view text) noexcept {
    const size_t length = std::min(text.size(), kCapacity - 1);
    std::memcpy(text_, text.data(), length);
    text_[length] = '\0';
    if (length < text.size()) std::memcpy(text_ + length - 3, "...", 3);
    return text_;
  }
  const char* get() const noexcept { return text_; }

 private:
  static constexpr size_t kCapacity = 1024;
  char text_[kCapacity] = {};
};

}  // namespace flashmla
