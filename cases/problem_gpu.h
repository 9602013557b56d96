// Device memory for DecodeProblem: defined by problem_gpu.cc in builds with CUDA.
#pragma once

#include "cases/memory.h"
#include "flashmla/flashmla.h"

namespace flashmla::cases {

// Device copies of host buffers, for the time of a call.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(const Buffer& host);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  DeviceBuffer(const DeviceBuffer&) = delete;

  // The address on the device that corresponds to an address in the host buffer.
  void* at(const void* host) const;
  void download() const;
  bool holds(const void* host) const;

 private:
  const Buffer* host_ = nullptr;
  void* device_ = nullptr;
};

// Waits for the device; the error of what ran there.
Status device_status();
// A GPU is there that back end "cuda" can use.
bool has_gpu();

}  // namespace flashmla::cases
