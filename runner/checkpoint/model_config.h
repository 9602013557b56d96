// config.json of a DeepSeek-V2/V3-architecture checkpoint, as numbers. docs/running-models.md names the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashmla/status.h"

namespace flashmla::runner {

enum class Scoring { kSoftmax, kSigmoid };
enum class TopkMethod { kGreedy, kGroupLimitedGreedy, kNoauxTc };

// Frequency interpolation of RoPE past the original context ("YaRN").
struct Yarn {
  double factor = 1;
  double original_max_position = 4096;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;  // 0: the softmax scale has no factor
};

struct ModelConfig {
  std::string model_type;  // "deepseek_v2" or "deepseek_v3"
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t q_lora_rank = 0;   // 0: q_proj in one step
  int64_t kv_lora_rank = 0;  // latent_dim
  int64_t qk_nope_dim = 0;
  int64_t qk_rope_dim = 0;
  int64_t v_dim = 0;
  int64_t intermediate = 0;      // of dense layers
  int64_t moe_intermediate = 0;  // of each expert
  int64_t routed_experts = 0;    // 0: every layer is dense
  int64_t shared_experts = 0;
  int64_t experts_per_token = 0;
  int64_t groups = 1;
  int64_t groups_per_token = 1;
  Scoring scoring = Scoring::kSoftmax;
  TopkMethod topk_method = TopkMethod::kGreedy;
  bool norm_topk_prob = false;
  double routed_scaling = 1;
  int64_t first_dense_layers = 0;
  int64_t moe_layer_freq = 1;
  int64_t vocab = 0;
  int64_t max_position = 0;
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<Yarn> yarn;
  bool tie_embeddings = false;
  bool attention_bias = false;
  bool latent_norm = true;              // RMSNorms of the latents, q's and k's; converted models may have none
  std::vector<double> inv_freq;         // explicit RoPE frequencies ("rope_inv_freq"); empty: from theta and YaRN
  std::optional<double> softmax_scale;  // explicit; else (nope + rope)^-0.5 times the YaRN factor squared
  std::vector<int32_t> eos_ids;
  int32_t bos_id = -1;
  bool fp8_weights = false;  // quantization_config: e4m3 with 128 x 128 block scales

  bool is_moe_layer(int64_t layer) const {
    return routed_experts > 0 && layer >= first_dense_layers && layer % moe_layer_freq == 0;
  }
  int64_t qk_dim() const { return qk_nope_dim + qk_rope_dim; }

  // The two derived quantities that implementations get wrong (docs/math.md): what scores are multiplied by, and the
  // qk_rope_dim / 2 rotation frequencies with the amplitude of cos and sin.
  double attention_scale() const;
  std::vector<double> rope_frequencies() const;
  double rope_amplitude() const;
};

// `text`: the content of config.json. The error names the key, what was got and what is supported.
Result<ModelConfig> parse_model_config(const std::string& text);
Result<ModelConfig> load_model_config(const std::string& path);

}  // namespace flashmla::runner
