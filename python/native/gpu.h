// What the module itself does on a GPU: the device of a call made current, and workspace of its own.
#pragma once

#include <cstdint>

#include "flashmla/context.h"
#include "flashmla/status.h"

namespace flashmla::python {

// Makes the device of a call current while it lives. Nothing for the CPU.
class CurrentDevice {
 public:
  explicit CurrentDevice(Device device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  const Status& status() const { return status_; }  // kNotFound: there is no such device

 private:
  int before_ = -1;
  Status status_;
};

// Memory of the current device, allocated and freed in the order of a stream: the free waits for what the call
// enqueued.
class StreamMemory {
 public:
  StreamMemory(int64_t bytes, void* stream);
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  void* data() const { return data_; }
  const Status& status() const { return status_; }

 private:
  void* data_ = nullptr;
  void* stream_ = nullptr;
  Status status_;
};

}  // namespace flashmla::python
