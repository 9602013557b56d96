#include "runner/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace flashmla::runner {

namespace {

Status system_error(const std::string& path, const char* what) {
  const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInvalidArgument;
  return {code, path + ": " + what + ": " + std::strerror(errno)};
}

Result<std::span<const std::byte>> map(int descriptor, const std::string& path) {
  struct stat info {};
  if (fstat(descriptor, &info) != 0) return system_error(path, "cannot be looked at");
  if (!S_ISREG(info.st_mode)) return Status(StatusCode::kInvalidArgument, path + ": not a regular file");
  if (info.st_size == 0) return std::span<const std::byte>();  // mmap takes no empty file
  const auto size = static_cast<size_t>(info.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED) return system_error(path, "cannot be mapped");
  madvise(memory, size, MADV_RANDOM);
  return std::span<const std::byte>(static_cast<const std::byte*>(memory), size);
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is refused, not waited for
  if (descriptor < 0) return system_error(path, "cannot be opened");
  const Result<std::span<const std::byte>> bytes = map(descriptor, path);
  close(descriptor);
  if (!bytes.ok()) return bytes.status();
  return std::shared_ptr<const MappedFile>(new MappedFile(path, bytes.value()));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::read_ahead() const {
  if (!bytes_.empty()) madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_NORMAL);
}

void MappedFile::will_need(std::span<const std::byte> part) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t before = reinterpret_cast<uintptr_t>(part.data()) % page;
  madvise(const_cast<std::byte*>(part.data()) - before, part.size() + before, MADV_WILLNEED);
}

void MappedFile::forget(std::span<const std::byte> part) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t skipped = (page - reinterpret_cast<uintptr_t>(part.data()) % page) % page;  // whole pages only
  if (part.size() < skipped + page) return;
  madvise(const_cast<std::byte*>(part.data()) + skipped, (part.size() - skipped) / page * page, MADV_DONTNEED);
}

}  // namespace flashmla::runner
