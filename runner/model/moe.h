// Mixture-of-experts layer: router, routed experts, shared experts.
#pragma once

#include <cstdint>
#include <vector>

#include "runner/checkpoint/weights.h"

namespace flashmla::runner {

struct Choice {
  int32_t expert = 0;
  float weight = 0;
};

// The experts of one token and their weights, best first, from the router's logits (docs/running-models.md: softmax or
// sigmoid scores, groups, bias, normalisation, scaling).
void route(const ModelConfig& config, const std::vector<float>& bias, const float* logits, Choice* choices);

// y[t] = Mlp(x[t]), [tokens, hidden].
void dense_mlp(const Mlp& mlp, const float* x, int64_t tokens, float* y, int32_t threads);

// y[t] = sum of the chosen experts + shared experts. `choices`: [tokens][experts_per_token], filled.
void moe_mlp(const ModelConfig& config, const Layer& layer, const float* x, int64_t tokens, float* y,
             std::vector<Choice>& choices, int32_t threads);

}  // namespace flashmla::runner
