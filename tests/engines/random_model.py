"""Checkpoints with random weights on disk: tiny DeepSeek-V2 and -V3 models with the true widths of attention.

Weights that an engine makes up by itself are no test: all its logits are then equal, and so are the tokens of any two back ends.
"""

import json
import pathlib
import shutil

DEMO = pathlib.Path(__file__).parents[2] / "models" / "demo"  # for its tokenizer, whose vocabulary is as large
ATTENTION = dict(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
V2 = dict(
    ATTENTION, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", torch_dtype="bfloat16", hidden_size=256,
    num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None, intermediate_size=512,
    moe_intermediate_size=128, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1,
    topk_method="greedy", scoring_func="softmax", norm_topk_prob=False, routed_scaling_factor=1.0, first_k_dense_replace=1,
    moe_layer_freq=1, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0, max_position_embeddings=4096,
    rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=1024, beta_fast=32, beta_slow=1,
                      mscale=0.707, mscale_all_dim=0.707),
    attention_bias=False, attention_dropout=0.0, tie_word_embeddings=False, vocab_size=1024, bos_token_id=0, eos_token_id=1,
    use_cache=True,
)  # fmt: skip
V3 = dict(
    V2, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", q_lora_rank=96, n_routed_experts=8, n_group=4,
    topk_group=2, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.5,
    num_nextn_predict_layers=0,
    rope_scaling=dict(V2["rope_scaling"], mscale=1.0, mscale_all_dim=1.0),
)  # fmt: skip
CONFIGS = {"v2": V2, "v3": V3}


def write(folder, config, seed=7):
    """config.json, model.safetensors and a tokenizer into `folder`; weights are exact in bf16."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {}

    def matrix(name, rows, columns, gain=1.0):
        values = torch.randn(rows, columns, generator=generator) * gain / columns**0.5
        tensors[f"{name}.weight"] = values.to(torch.bfloat16)

    def norm(name, width):
        tensors[f"{name}.weight"] = (1 + 0.1 * torch.randn(width, generator=generator)).to(torch.bfloat16)

    def mlp(name, width):
        for part in ("gate_proj", "up_proj"):
            matrix(f"{name}.{part}", width, hidden)
        matrix(f"{name}.down_proj", hidden, width)

    c, hidden, heads = config, config["hidden_size"], config["num_attention_heads"]
    query = heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    matrix("model.embed_tokens", c["vocab_size"], hidden, hidden**0.5)
    norm("model.norm", hidden)
    matrix("lm_head", c["vocab_size"], hidden, 3.0)
    for number in range(c["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        norm(f"{layer}.input_layernorm", hidden)
        norm(f"{layer}.post_attention_layernorm", hidden)
        attention = f"{layer}.self_attn"
        if c["q_lora_rank"] is None:
            matrix(f"{attention}.q_proj", query, hidden, 2.0)
        else:
            matrix(f"{attention}.q_a_proj", c["q_lora_rank"], hidden)
            norm(f"{attention}.q_a_layernorm", c["q_lora_rank"])
            matrix(f"{attention}.q_b_proj", query, c["q_lora_rank"], 2.0)
        matrix(f"{attention}.kv_a_proj_with_mqa", c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden)
        norm(f"{attention}.kv_a_layernorm", c["kv_lora_rank"])
        matrix(f"{attention}.kv_b_proj", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"])
        matrix(f"{attention}.o_proj", hidden, heads * c["v_head_dim"], 2.0)
        if number < c["first_k_dense_replace"]:
            mlp(f"{layer}.mlp", c["intermediate_size"])
            continue
        matrix(f"{layer}.mlp.gate", c["n_routed_experts"], hidden)
        if c["topk_method"] == "noaux_tc":
            bias = 0.1 * torch.randn(c["n_routed_experts"], generator=generator)
            tensors[f"{layer}.mlp.gate.e_score_correction_bias"] = bias
        for expert in range(c["n_routed_experts"]):
            mlp(f"{layer}.mlp.experts.{expert}", c["moe_intermediate_size"])
        mlp(f"{layer}.mlp.shared_experts", c["moe_intermediate_size"] * c["n_shared_experts"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder / name)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
