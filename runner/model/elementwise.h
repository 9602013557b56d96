// The small operations between the matrix products: norms, rotary embedding, SiLU. Rows of fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "runner/checkpoint/model_config.h"

namespace flashmla::runner {

// to = x / rms(x) * weight, one row. `to` may be `x`.
void rms_norm(const float* x, const std::vector<float>& weight, double eps, float* to);

// to += bias where there is one.
void add_bias(const std::vector<float>& bias, float* to);

// gate = silu(gate) * up.
void silu_and_multiply(float* gate, const float* up, int64_t count);

// cos and sin of every rotation frequency at a position, times the model's amplitude.
class Rope {
 public:
  explicit Rope(const ModelConfig& config);
  // Rotates neighbouring pairs (2i, 2i + 1) of a row of qk_rope_dim values.
  void rotate(float* row, int64_t position) const;

 private:
  std::vector<double> frequencies_;
  double amplitude_ = 1;
};

}  // namespace flashmla::runner
