// GPUs as data: what kernel choice and schedule depend on. Tests give descriptors of GPUs that are not there.
#pragma once

#include <cstdint>
#include <string>

#include "flashmla/context.h"
#include "flashmla/status.h"

namespace flashmla::cuda {

inline constexpr int kMaxDevices = 64;  // device_of refuses any beyond

struct DeviceInfo {
  int index = 0;
  std::string name;
  int compute_capability = 0;  // 10 * major + minor
  int multiprocessors = 0;
  int smem_per_block = 0;   // bytes a block may use when it asks for them
  bool hopper_code = false;  // it runs code that this build compiled for sm_90a
};

// The device that a call runs on: the stream's, for the null stream the current one. kNotFound without a usable GPU or
// driver, with the reason. What it points to is kept until the process ends.
Result<const DeviceInfo*> device_of(const Context& context);

// Makes a device current for the time of a call.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = -1;
};

}  // namespace flashmla::cuda
