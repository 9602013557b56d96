#include "cuda/device.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <memory>

#include "core/text.h"
#include "cuda/decode/instances/instances.h"

namespace flashmla::cuda {

namespace {

Status not_usable(const char* what, cudaError_t error) {
  return {StatusCode::kNotFound, concat("device: got CUDA, but ", what, ": ", cudaGetErrorString(error),
                                        "; want an NVIDIA GPU (compute capability 8.0 or newer) and its driver")};
}

// Whether this build has code for sm_90a and the driver uses it: it may have been told to compile PTX instead.
bool runs_hopper_code(int index) {
#ifdef FLASHMLA_HAS_SM90A
  const DeviceGuard guard(index);
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, bf16_hopper_16_split(LineKind::kAny)) == cudaSuccess &&
         attributes.ptxVersion == 90 && attributes.binaryVersion == 90;
#else
  static_cast<void>(index);
  return false;
#endif
}

Result<DeviceInfo> read_device(int index) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess)
    return not_usable("its properties cannot be read", error);
  DeviceInfo info;
  info.index = index;
  info.name = properties.name;
  info.compute_capability = 10 * properties.major + properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.smem_per_block = static_cast<int>(properties.sharedMemPerBlockOptin);
  info.hopper_code = info.compute_capability == 90 && runs_hopper_code(index);
  if (info.compute_capability < 80) {
    return unsupported("device", concat(info.name, " of compute capability ", properties.major, ".", properties.minor),
                       "NVIDIA GPUs of compute capability 8.0 and newer");
  }
  return info;
}

}  // namespace

Result<const DeviceInfo*> device_of(const Context& context) {
  int index = 0;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  // A stream that is being captured must not be asked for its device; launches into it need that device current anyway.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaError_t error = stream == nullptr ? cudaSuccess : cudaStreamIsCapturing(stream, &capture);
  if (error == cudaSuccess) {
    const bool ask = stream != nullptr && capture == cudaStreamCaptureStatusNone;
    error = ask ? cudaStreamGetDevice(stream, &index) : cudaGetDevice(&index);
  }
  if (error != cudaSuccess) return not_usable("no device answers", error);
  // Properties never change; reading them takes longer than a kernel runs.
  static std::array<std::atomic<const DeviceInfo*>, kMaxDevices> known{};
  if (index >= kMaxDevices) {
    return unsupported("device", concat("CUDA device ", index), concat("devices 0 .. ", kMaxDevices - 1));
  }
  if (const DeviceInfo* info = known[index].load(std::memory_order_acquire)) return info;
  Result<DeviceInfo> read = read_device(index);
  if (!read.ok()) return read.status();
  auto fresh = std::make_unique<const DeviceInfo>(std::move(read.value()));
  const DeviceInfo* expected = nullptr;
  if (!known[index].compare_exchange_strong(expected, fresh.get())) return expected;  // another thread was first
  return fresh.release();
}

DeviceGuard::DeviceGuard(int index) {
  int current = index;
  if (cudaGetDevice(&current) != cudaSuccess || current == index) return;
  if (cudaSetDevice(index) == cudaSuccess) before_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0) cudaSetDevice(before_);
}

}  // namespace flashmla::cuda
