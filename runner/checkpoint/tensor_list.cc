#include "runner/checkpoint/tensor_list.h"

#include <array>

namespace flashmla::runner {

namespace {

// In the order of Role.
constexpr std::array<RoleInfo, kRoles> kRoleTable = {{
    {Role::kEmbedding, "model.embed_tokens.weight", Part::kEmbedding, false},
    {Role::kInputNorm, "input_layernorm.weight", Part::kNorms, false},
    {Role::kQ, "self_attn.q_proj.weight", Part::kAttention, true},
    {Role::kQBias, "self_attn.q_proj.bias", Part::kAttention, false},
    {Role::kQA, "self_attn.q_a_proj.weight", Part::kAttention, true},
    {Role::kQABias, "self_attn.q_a_proj.bias", Part::kAttention, false},
    {Role::kQANorm, "self_attn.q_a_layernorm.weight", Part::kNorms, false},
    {Role::kQB, "self_attn.q_b_proj.weight", Part::kAttention, true},
    {Role::kQBBias, "self_attn.q_b_proj.bias", Part::kAttention, false},
    {Role::kKvA, "self_attn.kv_a_proj_with_mqa.weight", Part::kAttention, true},
    {Role::kKvABias, "self_attn.kv_a_proj_with_mqa.bias", Part::kAttention, false},
    {Role::kKvANorm, "self_attn.kv_a_layernorm.weight", Part::kNorms, false},
    {Role::kKvB, "self_attn.kv_b_proj.weight", Part::kAttention, true},
    {Role::kO, "self_attn.o_proj.weight", Part::kAttention, true},
    {Role::kOBias, "self_attn.o_proj.bias", Part::kAttention, false},
    {Role::kPostAttentionNorm, "post_attention_layernorm.weight", Part::kNorms, false},
    {Role::kDenseGate, "mlp.gate_proj.weight", Part::kDenseMlp, true},
    {Role::kDenseUp, "mlp.up_proj.weight", Part::kDenseMlp, true},
    {Role::kDenseDown, "mlp.down_proj.weight", Part::kDenseMlp, true},
    {Role::kRouter, "mlp.gate.weight", Part::kRouter, false},
    {Role::kRouterBias, "mlp.gate.e_score_correction_bias", Part::kRouter, false},
    {Role::kExpertGate, "gate_proj.weight", Part::kRoutedExperts, true},
    {Role::kExpertUp, "up_proj.weight", Part::kRoutedExperts, true},
    {Role::kExpertDown, "down_proj.weight", Part::kRoutedExperts, true},
    {Role::kSharedGate, "mlp.shared_experts.gate_proj.weight", Part::kSharedExperts, true},
    {Role::kSharedUp, "mlp.shared_experts.up_proj.weight", Part::kSharedExperts, true},
    {Role::kSharedDown, "mlp.shared_experts.down_proj.weight", Part::kSharedExperts, true},
    {Role::kNorm, "model.norm.weight", Part::kNorms, false},
    {Role::kHead, "lm_head.weight", Part::kHead, true},
}};

class Lister {
 public:
  Lister(const ModelConfig& config, Weights& weights) : config_(config), weights_(weights) {}

  std::vector<TensorSlot> list() {
    weights_.layers.assign(static_cast<size_t>(config_.layers), {});
    add(Role::kEmbedding, weights_.embedding, config_.vocab, config_.hidden);
    for (layer_ = 0; layer_ < config_.layers; ++layer_) add_layer(weights_.layers[static_cast<size_t>(layer_)]);
    layer_ = -1;
    add(Role::kNorm, weights_.norm, config_.hidden);
    if (!config_.tie_embeddings) add(Role::kHead, weights_.head, config_.vocab, config_.hidden);
    return std::move(slots_);
  }

 private:
  TensorSlot& add_slot(Role role, int64_t rows, int64_t cols) {
    TensorSlot slot;
    slot.role = role;
    slot.layer = layer_;
    slot.expert = expert_;
    if (layer_ >= 0) slot.name = "model.layers." + std::to_string(layer_) + ".";
    if (expert_ >= 0) slot.name += "mlp.experts." + std::to_string(expert_) + ".";
    slot.name += role_info(role).suffix;
    slot.rows = rows;
    slot.cols = cols;
    return slots_.emplace_back(std::move(slot));
  }
  void add(Role role, Matrix& to, int64_t rows, int64_t cols) { add_slot(role, rows, cols).matrix = &to; }
  void add(Role role, std::vector<float>& to, int64_t size) { add_slot(role, size, 0).vector = &to; }
  void add_bias(Role role, std::vector<float>& to, int64_t size) {
    if (!config_.attention_bias) return;
    add(role, to, size);
    slots_.back().required = false;
  }

  void add_attention(Attention& to) {
    const int64_t queries = config_.heads * config_.qk_dim();
    if (config_.q_lora_rank == 0) {
      add(Role::kQ, to.q, queries, config_.hidden);
      add_bias(Role::kQBias, to.q_bias, queries);
    } else {
      add(Role::kQA, to.q_a, config_.q_lora_rank, config_.hidden);
      add_bias(Role::kQABias, to.q_a_bias, config_.q_lora_rank);
      if (config_.latent_norm) add(Role::kQANorm, to.q_a_norm, config_.q_lora_rank);
      add(Role::kQB, to.q_b, queries, config_.q_lora_rank);
      add_bias(Role::kQBBias, to.q_bias, queries);
    }
    const int64_t latent_and_rope = config_.kv_lora_rank + config_.qk_rope_dim;
    add(Role::kKvA, to.kv_a, latent_and_rope, config_.hidden);
    add_bias(Role::kKvABias, to.kv_a_bias, latent_and_rope);
    if (config_.latent_norm) add(Role::kKvANorm, to.kv_a_norm, config_.kv_lora_rank);
    add(Role::kKvB, to.kv_b, config_.heads * (config_.qk_nope_dim + config_.v_dim), config_.kv_lora_rank);
    add(Role::kO, to.o, config_.hidden, config_.heads * config_.v_dim);
    add_bias(Role::kOBias, to.o_bias, config_.hidden);
  }

  // `gate` is followed by the roles of up and down.
  void add_mlp(Role gate, Mlp& to, int64_t width) {
    add(gate, to.gate, width, config_.hidden);
    add(static_cast<Role>(static_cast<int>(gate) + 1), to.up, width, config_.hidden);
    add(static_cast<Role>(static_cast<int>(gate) + 2), to.down, config_.hidden, width);
  }

  void add_layer(Layer& to) {
    add(Role::kInputNorm, to.input_norm, config_.hidden);
    add_attention(to.attention);
    add(Role::kPostAttentionNorm, to.post_attention_norm, config_.hidden);
    if (!config_.is_moe_layer(layer_)) return add_mlp(Role::kDenseGate, to.dense, config_.intermediate);
    add(Role::kRouter, to.router, config_.routed_experts, config_.hidden);
    if (config_.topk_method == TopkMethod::kNoauxTc) add(Role::kRouterBias, to.router_bias, config_.routed_experts);
    to.experts.assign(static_cast<size_t>(config_.routed_experts), {});
    for (expert_ = 0; expert_ < config_.routed_experts; ++expert_) {
      add_mlp(Role::kExpertGate, to.experts[static_cast<size_t>(expert_)], config_.moe_intermediate);
    }
    expert_ = -1;
    if (config_.shared_experts == 0) return;
    add_mlp(Role::kSharedGate, to.shared, config_.shared_experts * config_.moe_intermediate);
  }

  const ModelConfig& config_;
  Weights& weights_;
  std::vector<TensorSlot> slots_;
  int64_t layer_ = -1;
  int64_t expert_ = -1;
};

}  // namespace

const RoleInfo& role_info(Role role) { return kRoleTable[static_cast<size_t>(role)]; }

const char* part_name(Part part) {
  constexpr std::array<const char*, kParts> kNames = {"embedding",      "attention", "dense MLPs", "routed experts",
                                                      "shared experts", "routers",   "norms",      "head"};
  return kNames[static_cast<size_t>(part)];
}

std::vector<TensorSlot> list_tensors(const ModelConfig& config, Weights& weights) {
  return Lister(config, weights).list();
}

}  // namespace flashmla::runner
