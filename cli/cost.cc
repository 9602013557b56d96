#include "cost.h"

#include <algorithm>

namespace flashmla::cli {

namespace {

// Sum over the query tokens of a request of the keys each one sees.
double visible_pairs(const DecodeShape& shape, int64_t length) {
  if (!shape.causal) return static_cast<double>(shape.seq_q) * static_cast<double>(length);
  // Token i sees length - s_q + i + 1 keys: an arithmetic series, cut off where a token sees none.
  const int64_t most = length;
  const int64_t least = std::max<int64_t>(length - shape.seq_q + 1, 1);
  return most < 1 ? 0 : 0.5 * static_cast<double>(most + least) * static_cast<double>(most - least + 1);
}

}  // namespace

Cost decode_cost(const DecodeShape& shape, const std::vector<int64_t>& lengths) {
  const int64_t d_qk = shape.latent_dim + shape.rope_dim;
  const auto width = static_cast<double>(d_qk + shape.latent_dim);
  const int64_t kv_bytes = kv_bytes_per_token(shape.kv_format, shape.latent_dim, shape.rope_dim) * shape.heads_kv;
  Cost cost;
  for (const int64_t length : lengths) {
    cost.flops += 2 * static_cast<double>(shape.heads_q) * visible_pairs(shape, length) * width;
    cost.bytes += static_cast<double>(kv_bytes) * static_cast<double>(length);
  }
  const double rows = static_cast<double>(shape.total_q) * static_cast<double>(shape.heads_q);
  cost.bytes += rows * width * static_cast<double>(dtype_bytes(shape.dtype));  // q [d_qk] and out [d_v]
  return cost;
}

Bound bound_of(const Cost& cost, const Ceilings& ceilings) {
  const double compute_us = ceilings.peak_gflops > 0 ? cost.flops / ceilings.peak_gflops * 1e-3 : 0;
  const double memory_us = ceilings.peak_gbps > 0 ? cost.bytes / ceilings.peak_gbps * 1e-3 : 0;
  return {compute_us > memory_us, std::max(compute_us, memory_us)};
}

}  // namespace flashmla::cli
