// The decode kernels that this build has, and which one a call runs: host code, tested without a GPU.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cuda/decode/config.h"
#include "cuda/device.h"
#include "flashmla/decode.h"

namespace flashmla::cuda {

struct DecodeEntry {
  const char* name;
  DType dtype;
  DecodeConfig config;
  int stages;  // of the ring in shared memory
  // Addresses of the kernels' host stubs.
  const void* (*split_kernel)();
  const void* (*combine_kernel)();

  int smem_bytes() const { return config.smem_bytes(stages); }
};

std::span<const DecodeEntry> decode_entries();

// The entry for a shape on a device; `named` forces one by its name. kUnsupported names what is missing. On the way of
// every call: builds no text unless it refuses.
Result<const DecodeEntry*> select_decode(const DecodeShape& shape, const DeviceInfo& device, std::string_view named);

// Why select_decode chose `entry`.
std::string decode_reason(const DecodeShape& shape, const DeviceInfo& device, std::string_view named,
                          const DecodeEntry& entry);

}  // namespace flashmla::cuda
