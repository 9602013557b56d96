// All weights of a model by role, whatever names and formats the checkpoint used.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "flashmla/status.h"
#include "runner/checkpoint/model_config.h"
#include "runner/linear/matrix.h"

namespace flashmla::runner {

struct Mlp {
  Matrix gate;  // [width, hidden]
  Matrix up;    // [width, hidden]
  Matrix down;  // [hidden, width]
};

struct Attention {
  Matrix q;                      // [heads * (nope + rope), hidden]; absent with q_lora_rank
  Matrix q_a;                    // [q_lora_rank, hidden]
  std::vector<float> q_a_norm;   // [q_lora_rank]; empty: no norm
  Matrix q_b;                    // [heads * (nope + rope), q_lora_rank]
  Matrix kv_a;                   // [kv_lora_rank + rope, hidden]
  std::vector<float> kv_a_norm;  // [kv_lora_rank]; empty: no norm
  Matrix kv_b;                   // [heads * (nope + v), kv_lora_rank]; per head W_UK's rows, then W_UV's
  Matrix o;                      // [hidden, heads * v]
  std::vector<float> q_bias, q_a_bias, kv_a_bias, o_bias;  // empty: none
};

struct Layer {
  std::vector<float> input_norm, post_attention_norm;  // [hidden]
  Attention attention;
  Mlp dense;                       // dense layers
  Matrix router;                   // MoE layers: [routed_experts, hidden]
  std::vector<float> router_bias;  // e_score_correction_bias; empty: none
  std::vector<Mlp> experts;        // [routed_experts]
  Mlp shared;                      // all shared experts as one; absent when there are none
};

struct Weights {
  Matrix embedding;  // [vocab, hidden]
  std::vector<Layer> layers;
  std::vector<float> norm;  // [hidden]
  Matrix head;              // [vocab, hidden]
};

enum class WeightPolicy { kAsStored, kInt8 };  // kInt8: projections, experts and head quantised by row at load

struct LoadOptions {
  WeightPolicy policy = WeightPolicy::kAsStored;
  int32_t threads = 0;
  std::function<void(double fraction)> progress{};    // called from the loading thread
  std::function<void(const std::string&)> warning{};  // unknown tensors, once each kind
};

// `folder` holds config.json and safetensors shards. Missing tensors: one error that lists them (the first 20 and how
// many more).
Result<Weights> load_weights(const std::string& folder, const ModelConfig& config, const LoadOptions& options);
// Full-size weights in memory for measurements: normal with 1/sqrt(cols), bf16 (or int8 by the policy).
Result<Weights> random_weights(const ModelConfig& config, uint64_t seed, const LoadOptions& options);
// The head of a model without one of its own: the embedding.
void tie_head(Weights& weights, WeightPolicy policy, int32_t threads);

}  // namespace flashmla::runner
