#include "cuda/launch.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "core/env.h"
#include "core/text.h"
#include "cuda/device.h"

namespace flashmla::cuda {

namespace {

// What is known of a kernel on a device, found at its first launch there.
struct KernelState {
  std::atomic<const void*> kernel{nullptr};
  std::atomic<uint64_t> prepared{0};   // bit d: shared-memory limit raised on device d
  std::atomic<uint64_t> dependent{0};  // bit d: the loaded code has griddepcontrol
};

constexpr int kMaxKernels = 128;

KernelState& state_of(const void* kernel) {
  static KernelState states[kMaxKernels];
  for (size_t i = reinterpret_cast<uintptr_t>(kernel) / 16 % kMaxKernels;; i = (i + 1) % kMaxKernels) {
    const void* found = states[i].kernel.load(std::memory_order_acquire);
    if (found == nullptr && states[i].kernel.compare_exchange_strong(found, kernel)) return states[i];
    if (found == kernel) return states[i];
  }
}

Status failed(const char* name, const char* what, cudaError_t error) {
  return {StatusCode::kInternal, concat(name, ": ", what, ": ", cudaGetErrorString(error))};
}

}  // namespace

Status launch(const char* name, const void* kernel, const LaunchShape& shape, void** arguments, void* stream) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess)
    return failed(name, "no current device", error);
  KernelState& state = state_of(kernel);
  const uint64_t bit = uint64_t{1} << device;
  if ((state.prepared.load(std::memory_order_acquire) & bit) == 0) {
    cudaFuncAttributes attributes;
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess)
      return failed(name, "the kernel has no code for this GPU", error);
    // All that a block may have: later launches of this kernel may ask for more than this one.
    int limit = 0;
    cudaError_t error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    limit -= static_cast<int>(attributes.sharedSizeBytes);
    if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
    if (error != cudaSuccess) return failed(name, "shared memory was refused", error);
    // Code that the driver compiled from compute_80 PTX has no griddepcontrol.wait: it must not start early.
    if (attributes.ptxVersion >= 90) state.dependent.fetch_or(bit);
    state.prepared.fetch_or(bit, std::memory_order_release);
  }
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.smem_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = (state.dependent.load(std::memory_order_relaxed) & bit) != 0 ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelExC(&config, kernel, arguments);
  if (error != cudaSuccess) return failed(name, "launch failed", error);
  return {};
}

Status synchronize_if_asked(const char* operation, void* stream) {
  if (!env_sync()) return {};
  // Waiting would invalidate a capture, in which nothing runs yet.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capture) == cudaSuccess &&
      capture != cudaStreamCaptureStatusNone)
    return {};
  const cudaError_t error = cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) return {};
  return failed(operation, "failed on the GPU (FLASHMLA_SYNC=1)", error);
}

}  // namespace flashmla::cuda
