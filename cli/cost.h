// What a decode call has to compute and move at the least, and what a machine allows it: the roofline.
#pragma once

#include <cstdint>
#include <vector>

#include "flashmla/decode.h"

namespace flashmla::cli {

struct Cost {
  double flops = 0;  // 2 * heads * visible keys * (d_qk + d_v), summed over query tokens; a multiply-add counts as two
  double bytes = 0;  // each cached token once (the causal rule takes none away from the last query), q once, out once
  double intensity() const { return bytes > 0 ? flops / bytes : 0; }  // flop/B
};

Cost decode_cost(const DecodeShape& shape, const std::vector<int64_t>& lengths);

struct Ceilings {
  double peak_gflops = 0;
  double peak_gbps = 0;                                                         // 1e9 bytes a second
  double ridge() const { return peak_gbps > 0 ? peak_gflops / peak_gbps : 0; }  // flop/B where both bounds meet
};

struct Bound {
  bool compute = false;  // otherwise memory
  double time_us = 0;    // no run can be faster than this
  const char* name() const { return compute ? "compute" : "memory"; }
};

Bound bound_of(const Cost& cost, const Ceilings& ceilings);

}  // namespace flashmla::cli
