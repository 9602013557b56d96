// Device copies of the host tensors of a call, each between guards, at the same place in a line of 256 bytes.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases/problem_gpu.h"
#include "flashmla/flashmla.h"

namespace flashmla::tests {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// Skips by name; GTEST_SKIP returns from the function it stands in.
#define REQUIRE_GPU() \
  if (!cases::has_gpu()) GTEST_SKIP() << "needs an NVIDIA GPU that back end 'cuda' can use"

inline Context on_gpu(cudaStream_t stream = nullptr) {
  return {.device = {DeviceType::kCUDA}, .stream = stream, .backend = "cuda"};
}

class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() {
    for (const Span& span : spans_) cudaFree(span.memory);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // The view of the same elements on the device. Views inside memory that is there already share it, as on the host.
  template <class View>
  View mirror(View view) {
    const auto* data = static_cast<const std::byte*>(view.data);
    const std::byte* low = data;
    const std::byte* high = data + dtype_bytes(view.dtype);
    for (int d = 0; d < view.ndim; ++d) {
      if (view.shape[d] == 0) return view;
      const int64_t reach = view.shape[d] > 1 ? (view.shape[d] - 1) * view.stride[d] * dtype_bytes(view.dtype) : 0;
      (reach < 0 ? low : high) += reach;
    }
    if (view.given()) view.data = const_cast<std::byte*>(at(low, high) + (data - low));
    return view;
  }

  // Copies everything back, the inputs too: what is not to be written must not have changed. "" or what is wrong.
  std::string download() {
    std::string fault;
    for (const Span& span : spans_) {
      std::vector<std::byte> all(static_cast<size_t>(span.bytes()));
      check_cuda(cudaMemcpy(all.data(), span.memory, all.size(), cudaMemcpyDeviceToHost), "copy from device");
      const auto first = static_cast<int64_t>(span.device() - static_cast<std::byte*>(span.memory));
      const int64_t size = span.high - span.low;
      for (int64_t i = 0; i < span.bytes(); ++i) {
        if ((i < first || i >= first + size) && all[static_cast<size_t>(i)] != kGuardByte && fault.empty())
          fault = "a byte at " + std::to_string(i - first) + " was written outside " + std::to_string(size) + " bytes";
      }
      std::copy_n(all.data() + first, size, const_cast<std::byte*>(span.low));
    }
    return fault;
  }

 private:
  static constexpr int64_t kGuard = 4096;
  static constexpr int64_t kLine = 256;
  static constexpr std::byte kGuardByte{0xa5};

  struct Span {
    const std::byte* low = nullptr;  // on the host
    const std::byte* high = nullptr;
    void* memory = nullptr;
    int64_t bytes() const { return high - low + 2 * kGuard + kLine; }
    std::byte* device() const {
      return static_cast<std::byte*>(memory) + kGuard + reinterpret_cast<uintptr_t>(low) % kLine;
    }
  };

  std::byte* at(const std::byte* low, const std::byte* high) {
    for (const Span& span : spans_) {
      if (low >= span.low && high <= span.high) return span.device() + (low - span.low);
    }
    Span span{low, high};
    check_cuda(cudaMalloc(&span.memory, static_cast<size_t>(span.bytes())), "device memory");
    spans_.push_back(span);
    check_cuda(cudaMemset(span.memory, static_cast<int>(kGuardByte), static_cast<size_t>(span.bytes())), "guard");
    check_cuda(cudaMemcpy(span.device(), low, static_cast<size_t>(high - low), cudaMemcpyHostToDevice), "copy");
    return span.device();
  }

  std::vector<Span> spans_;
};

// Device memory with the values of a host vector.
template <class T>
class DeviceVector {
 public:
  explicit DeviceVector(const std::vector<T>& host) : count_(host.size()) {
    check_cuda(cudaMalloc(&data_, std::max<size_t>(1, count_ * sizeof(T))), "DeviceVector");
    upload(host);
  }
  explicit DeviceVector(int64_t count) : count_(static_cast<size_t>(count)) {
    check_cuda(cudaMalloc(&data_, std::max<size_t>(1, count_ * sizeof(T))), "DeviceVector");
    check_cuda(cudaMemset(data_, 0xff, count_ * sizeof(T)), "DeviceVector");
  }
  ~DeviceVector() { cudaFree(data_); }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  void upload(const std::vector<T>& host) {
    check_cuda(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "DeviceVector");
    // A copy from pageable memory may still be on its way, and streams do not wait for it.
    check_cuda(cudaDeviceSynchronize(), "DeviceVector");
  }
  std::vector<T> download() const {
    std::vector<T> host(count_);
    check_cuda(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "DeviceVector");
    return host;
  }

 private:
  void* data_ = nullptr;
  size_t count_;
};

}  // namespace flashmla::tests
