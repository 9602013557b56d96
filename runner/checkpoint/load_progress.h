// Tells a callback how far loading is, at most some ten times a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace flashmla::runner {

class LoadProgress {
 public:
  LoadProgress(const std::function<void(double)>& callback, int64_t total) : callback_(callback), total_(total) {}

  void add(int64_t done) {
    done_ += done;
    const auto now = std::chrono::steady_clock::now();
    if (!callback_ || done_ >= total_ || now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    callback_(static_cast<double>(done_) / static_cast<double>(total_));
  }
  // The last call, with 1; none after an error.
  void finish() const {
    if (callback_) callback_(1);
  }

 private:
  const std::function<void(double)>& callback_;
  int64_t total_;
  int64_t done_ = 0;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now();
};

}  // namespace flashmla::runner
