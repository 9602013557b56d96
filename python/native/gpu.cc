#include "gpu.h"

#include <string>

#ifdef FLASHMLA_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace flashmla::python {

#ifdef FLASHMLA_HAS_CUDA

CurrentDevice::CurrentDevice(Device device) {
  int current = 0;
  if (device.type != DeviceType::kCUDA || cudaGetDevice(&current) != cudaSuccess || current == device.index) return;
  const cudaError_t error = cudaSetDevice(device.index);
  if (error == cudaSuccess) {
    before_ = current;
  } else {
    status_ = {StatusCode::kNotFound,
               "device: got cuda:" + std::to_string(device.index) + ": " + cudaGetErrorString(error)};
  }
}

CurrentDevice::~CurrentDevice() {
  if (before_ >= 0) cudaSetDevice(before_);
}

StreamMemory::StreamMemory(int64_t bytes, void* stream) : stream_(stream) {
  if (bytes == 0) return;
  const cudaError_t error = cudaMallocAsync(&data_, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) return;
  data_ = nullptr;
  status_ = {StatusCode::kOutOfMemory,
             "workspace: no memory for " + std::to_string(bytes) + " bytes: " + cudaGetErrorString(error)};
}

StreamMemory::~StreamMemory() {
  if (data_ != nullptr) cudaFreeAsync(data_, static_cast<cudaStream_t>(stream_));
}

#else

CurrentDevice::CurrentDevice(Device) {}
CurrentDevice::~CurrentDevice() = default;
StreamMemory::StreamMemory(int64_t, void*)
    : status_(StatusCode::kNotFound, "device: this build has no CUDA back end") {}
StreamMemory::~StreamMemory() = default;

#endif

}  // namespace flashmla::python
