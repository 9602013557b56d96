// Where a call runs: device, stream, back end, and the CPU's knobs.
#pragma once

#include <cstdint>
#include <string_view>

namespace flashmla {

enum class DeviceType : int32_t { kCPU = 0, kCUDA = 1 };

struct Device {
  DeviceType type = DeviceType::kCPU;
  int32_t index = 0;
};

struct Context {
  Device device{};             // CUDA: the stream's device counts, for the null stream the current one; not the index
  void* stream = nullptr;      // a cudaStream_t; not used by CPU back ends
  std::string_view backend{};  // empty: FLASHMLA_BACKEND, else the best registered back end that takes the call
  std::string_view isa{};  // "cpu" only: "scalar", "avx2", "avx512", "avx512_bf16"; empty: FLASHMLA_ISA, else the best
  int32_t threads = 0;     // "cpu" only; 0: FLASHMLA_NUM_THREADS, else affinity and cgroup quota
  std::string_view kernel{};  // "cuda" only: a kernel by its name (explain_decode); empty: chosen by shape and device
};

// Caller-owned scratch memory of one call: 256-byte aligned, arbitrary on entry, one per concurrent call.
struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

inline constexpr int64_t kWorkspaceAlignment = 256;

}  // namespace flashmla
