#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace flashmla::cli {

Progress::Progress(int64_t total) : total_(std::max<int64_t>(total, 1)), terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::show(int64_t done, const std::string& doing) {
  constexpr int kCells = 24;
  constexpr auto kPatience = std::chrono::seconds(1);
  if (!terminal_ || std::chrono::steady_clock::now() - start_ < kPatience) return;
  const auto filled = static_cast<size_t>(kCells * std::min(done, total_) / total_);
  fmt::print(stderr, "\r\033[K[{:<{}}] {} of {}  {}", std::string(filled, '#'), kCells, done, total_,
             doing.substr(0, 60));
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace flashmla::cli
