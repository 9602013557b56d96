#include "cases/problem_gpu.h"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace flashmla::cases {

namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace

DeviceBuffer::DeviceBuffer(const Buffer& host) : host_(&host) {
  if (host.bytes() == 0) return;
  check(cudaMalloc(&device_, static_cast<size_t>(host.bytes())), "device memory");
  check(cudaMemcpy(device_, host.data(), static_cast<size_t>(host.bytes()), cudaMemcpyHostToDevice), "copy to device");
}

DeviceBuffer::~DeviceBuffer() { cudaFree(device_); }

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept : host_(other.host_), device_(other.device_) {
  other.device_ = nullptr;
}

bool DeviceBuffer::holds(const void* host) const {
  const auto* byte = static_cast<const std::byte*>(host);
  return byte >= host_->data() && byte <= host_->data() + host_->bytes();
}

void* DeviceBuffer::at(const void* host) const {
  if (device_ == nullptr) return nullptr;
  return static_cast<std::byte*>(device_) + (static_cast<const std::byte*>(host) - host_->data());
}

void DeviceBuffer::download() const {
  if (device_ == nullptr) return;
  check(cudaMemcpy(host_->data(), device_, static_cast<size_t>(host_->bytes()), cudaMemcpyDeviceToHost),
        "copy from device");
}

Status device_status() {
  const cudaError_t error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return {};
  return {StatusCode::kInternal, std::string("on the device: ") + cudaGetErrorString(error)};
}

bool has_gpu() {
  const DecodeShape shape{.batch = 1, .seq_q = 1, .total_q = 1, .heads_q = 1};
  return explain_decode(shape, {}, {.device = {DeviceType::kCUDA}}).ok();
}

}  // namespace flashmla::cases
