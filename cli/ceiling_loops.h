// The loops behind the ceilings, one per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flashmla/tensor.h"

namespace flashmla::cli {

struct ComputeLoop {
  const char* isa;
  const char* name;
  bool bf16;              // multiplies bf16 pairs; fp32 otherwise
  int64_t flops_a_round;  // a multiply-add counts as two
  void (*run)(int64_t rounds);
};

struct ReadLoop {
  const char* isa;
  const char* name;
  void (*run)(const std::byte* data, int64_t bytes);  // 64-byte aligned, a multiple of 1 KiB
};

// The fastest loop of an instruction set in `isas` (best first, as in CpuInfo); plain C++ where none matches.
const ComputeLoop& compute_loop(const std::vector<std::string>& isas, DType dtype);
const ReadLoop& read_loop(const std::vector<std::string>& isas);

}  // namespace flashmla::cli
