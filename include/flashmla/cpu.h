// What the "cpu" back end sees of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashmla/export.h"

namespace flashmla {

struct CpuInfo {
  std::string model;              // the processor's name
  int32_t threads = 1;            // default threads: affinity and cgroup quota (or FLASHMLA_NUM_THREADS)
  std::vector<std::string> isas;  // usable instruction sets, best first: "avx512_bf16", "avx512", "avx2", "scalar"
  int64_t l2_bytes = 0;           // of one core; 0 when unknown
  int64_t l3_bytes = 0;           // as one core sees it; 0 when unknown
};

FLASHMLA_API CpuInfo cpu_info();

}  // namespace flashmla
