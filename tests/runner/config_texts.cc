// The keys of published config.json files that a runner reads, and tiny models of the same kinds.
#include "checkpoint_files.h"

namespace flashmla::runner {

std::string v2_lite_config() {
  return R"({"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "attention_bias": false,
    "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
    "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax",
    "norm_topk_prob": false, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "vocab_size": 102400, "bos_token_id": 100000, "eos_token_id": 100001, "hidden_act": "silu",
    "max_position_embeddings": 163840, "rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": false,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
                     "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}})";
}

std::string v2_config() {
  return with(v2_lite_config(), {{"hidden_size", "5120"},
                                 {"num_hidden_layers", "60"},
                                 {"num_attention_heads", "128"},
                                 {"q_lora_rank", "1536"},
                                 {"intermediate_size", "12288"},
                                 {"moe_intermediate_size", "1536"},
                                 {"n_routed_experts", "160"},
                                 {"n_group", "8"},
                                 {"topk_group", "3"},
                                 {"topk_method", R"("group_limited_greedy")"},
                                 {"routed_scaling_factor", "16.0"}});
}

std::string v3_config() {
  return R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": false,
    "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "norm_topk_prob": true, "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1, "vocab_size": 129280, "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
    "max_position_embeddings": 163840, "rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": false,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [128, 128]},
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
                     "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}})";
}

std::string tiny_v2_config() {
  return with(v2_lite_config(), {{"hidden_size", "24"},
                                 {"num_hidden_layers", "3"},
                                 {"num_attention_heads", "2"},
                                 {"kv_lora_rank", "16"},
                                 {"qk_nope_head_dim", "8"},
                                 {"qk_rope_head_dim", "4"},
                                 {"v_head_dim", "6"},
                                 {"intermediate_size", "40"},
                                 {"moe_intermediate_size", "10"},
                                 {"n_routed_experts", "4"},
                                 {"num_experts_per_tok", "2"},
                                 {"vocab_size", "32"},
                                 {"bos_token_id", "0"},
                                 {"eos_token_id", "1"}});
}

std::string tiny_v3_config() {
  return with(v3_config(), {{"hidden_size", "24"},
                            {"num_hidden_layers", "3"},
                            {"num_attention_heads", "2"},
                            {"q_lora_rank", "12"},
                            {"kv_lora_rank", "16"},
                            {"qk_nope_head_dim", "8"},
                            {"qk_rope_head_dim", "4"},
                            {"v_head_dim", "6"},
                            {"intermediate_size", "40"},
                            {"moe_intermediate_size", "10"},
                            {"n_routed_experts", "8"},
                            {"num_experts_per_tok", "3"},
                            {"n_group", "4"},
                            {"topk_group", "2"},
                            {"first_k_dense_replace", "1"},
                            {"vocab_size", "32"},
                            {"quantization_config", ""}});
}

}  // namespace flashmla::runner
