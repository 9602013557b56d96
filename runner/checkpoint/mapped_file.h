// A file as read-only memory. It must not be cut short while it is mapped (the process would end by SIGBUS).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "flashmla/status.h"

namespace flashmla::runner {

class MappedFile {
 public:
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // A new mapping reads page by page: headers and small tensors lie far apart, and reading ahead for each of them would
  // fetch gigabytes. To be called when whole matrices will be read in order.
  void read_ahead() const;
  // `part` is about to be read in full: lets the system start on it.
  static void will_need(std::span<const std::byte> part);
  // The whole pages inside `part` are no longer needed: the system may use their memory at once.
  static void forget(std::span<const std::byte> part);

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes) : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace flashmla::runner
