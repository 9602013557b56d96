// A progress bar on stderr for runs that take long; nothing at all when stderr is not a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace flashmla::cli {

class Progress {
 public:
  explicit Progress(int64_t total);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `doing` is under way, `done` of the total are finished. Drawn once the run has taken a second.
  void show(int64_t done, const std::string& doing);
  // Wipes the bar, so that a line can be printed in its place.
  void clear();

 private:
  int64_t total_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace flashmla::cli
