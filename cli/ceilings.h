// What this machine can do at most, measured with loops that do nothing else: the ceilings of the roofline.
#pragma once

#include <string>

#include "cost.h"
#include "flashmla/tensor.h"

namespace flashmla::cli {

struct MeasuredCeilings {
  Ceilings value;
  std::string compute_loop;  // e.g. "avx512_bf16 dot-product loop (VDPBF16PS)"
  std::string read_loop;     // e.g. "avx512 read loop over 256 MiB"
  int threads = 1;
};

// About 0.5 s. Compute: multiply-adds from registers only, on bf16 pairs where the processor has such an instruction
// and the call is bf16, on fp32 otherwise. Memory: reading a buffer several times larger than the last-level cache.
// Best of several trials, all threads at once.
MeasuredCeilings measure_ceilings(DType dtype, int threads);

}  // namespace flashmla::cli
