"""Writes tests/fixtures/models/*.json: what transformers computes for tiny models with weights from a formula.

    pip install torch==2.13.0 transformers==5.17.0
    python tools/make_model_fixtures.py tests/fixtures/models [NAME..]

Each file holds the config, prompts, logits and hidden states at some positions, and the router's choices, in fp32 and bf16.
The weights are not in it: they follow from each tensor's name by the formula of `values`, `weight` and `fp8_weight` below,
which tests/runner/model_fixture.cc repeats. All weights are exact in bf16; those of the FP8 model are rounded to it after
their scales were multiplied in, as a loader does that keeps them in bf16. transformers must apply YaRN's factor to the
softmax scale (from 5.17 on): the script stops when it does not.
"""

import json
import math
import os
import sys

import torch
import transformers

YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64, beta_fast=32,
            beta_slow=1, mscale=0.707, mscale_all_dim=0.707)  # fmt: skip
V2_LITE = dict(
    model_type="deepseek_v2", vocab_size=128, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
    n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2, moe_intermediate_size=32, intermediate_size=96,
    first_k_dense_replace=1, topk_method="greedy", n_group=1, topk_group=1, norm_topk_prob=False,
    routed_scaling_factor=1.0, max_position_embeddings=256, rms_norm_eps=1e-6, hidden_act="silu", attention_bias=False,
    tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, rope_parameters=YARN,
)  # fmt: skip
CONFIGS = {
    "v2lite-tiny": V2_LITE,
    "v2-group": dict(V2_LITE, q_lora_rank=24, topk_method="group_limited_greedy", n_group=4, topk_group=2,
                     routed_scaling_factor=2.0),
    "v3-tiny": dict(V2_LITE, model_type="deepseek_v3", q_lora_rank=24, topk_method="noaux_tc", scoring_func="sigmoid",
                    n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, num_experts_per_tok=2,
                    n_shared_experts=1, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0)),
    "kernel-dims": dict(V2_LITE, hidden_size=128, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=16,
                        kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    # Projections as DeepSeek-V3 ships them: e4m3 with a scale for each 128 x 128 block. No size but kv_lora_rank is a multiple of
    # 128: blocks at the edges are ragged, among them the last of kv_a's 576 rows.
    "v3-fp8": dict(V2_LITE, model_type="deepseek_v3", hidden_size=192, num_hidden_layers=2, q_lora_rank=160, kv_lora_rank=512,
                   qk_nope_head_dim=32, qk_rope_head_dim=64, v_head_dim=40, topk_method="noaux_tc", scoring_func="sigmoid",
                   n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, num_experts_per_tok=2,
                   n_shared_experts=1, moe_intermediate_size=144, intermediate_size=200,
                   rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0),
                   quantization_config=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                            weight_block_size=[128, 128])),
    "mscales-differ": dict(V2_LITE, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.5)),
}  # fmt: skip
LENGTH = 96  # of a prompt: past the original context of 64
POSITIONS = [0, 1, 8, 40, 63, 80, 95]


def random_bytes(name, count):
    """`count` bytes: FNV-1a of the name, then a linear congruence."""
    state = 2166136261
    for byte in name.encode():
        state = (state ^ byte) * 16777619 & 0xFFFFFFFF
    result = bytearray()
    for _ in range(count):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        result.append(state >> 24)
    return torch.frombuffer(result, dtype=torch.uint8)


def values(name, count):
    """`count` numbers of -2 .. 2 in steps of 1/64."""
    return (random_bytes(name, count).float() - 128) / 64


def weight(name, shape):
    raw = values(name, math.prod(shape)).view(shape)
    if name.endswith("norm.weight"):
        return 1 + raw / 2
    if name.endswith("correction_bias"):
        return raw / 8
    if "embed_tokens" in name:
        return raw
    return raw * 2.0 ** exponent_of(name, shape)


def exponent_of(name, shape):
    # Powers of two near 1 / sqrt(inputs). Routers are sharp, so that few choices are near ties, and what layers add is small
    # beside the residual stream: a tiny random model is chaotic otherwise, in bf16 above all.
    exponent = -round(math.log2(shape[-1]) / 2)
    if name.endswith("mlp.gate.weight"):
        exponent += 2
    elif "o_proj" in name or "down_proj" in name:
        exponent -= 2
    return exponent


def fp8_weight(name, shape):
    """Random e4m3 (as a rule of size 2^7), times a scale of each block that is no power of two."""
    if "_proj" not in name:
        return weight(name, shape)
    rows, cols = shape
    stored = random_bytes(name, rows * cols)
    stored = torch.where(stored % 128 == 127, stored - 1, stored)  # that would be NaN
    blocks = (-(-rows // 128), -(-cols // 128))
    raw = random_bytes(name + "_scale_inv", math.prod(blocks)).float().view(blocks)
    scale = (raw + 192) / 256 * 2.0 ** (exponent_of(name, shape) - 7)
    scale = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
    return (stored.view(torch.float8_e4m3fn).float().view(shape) * scale).to(torch.bfloat16).float()


def fill(model, weight):
    for name, parameter in list(model.named_parameters()) + [
        (n, b) for n, b in model.named_buffers() if n.endswith("correction_bias")
    ]:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            parameter.data.copy_(weight(name, tuple(parameter.shape)))
            continue
        for e in range(parameter.shape[0]):
            prefix = name[: name.rindex(".")] + f".{e}."
            if name.endswith("down_proj"):
                parameter.data[e].copy_(weight(prefix + "down_proj.weight", tuple(parameter.shape[1:])))
                continue
            half = (parameter.shape[1] // 2, parameter.shape[2])
            parameter.data[e].copy_(torch.cat([weight(prefix + part, half) for part in ("gate_proj.weight", "up_proj.weight")]))


def prompts(vocabulary):
    return [[(i * step + start) % vocabulary for i in range(LENGTH)] for start, step in ((3, 17), (90, 29))]


def run(model, tokens):
    chosen = []
    hooks = []
    for layer in model.model.layers:
        if hasattr(layer.mlp, "gate") and hasattr(layer.mlp, "experts"):
            hooks.append(layer.mlp.gate.register_forward_hook(lambda _, __, out: chosen.append(out[2])))
    with torch.no_grad():
        out = model(torch.tensor(tokens), output_hidden_states=True, use_cache=False)
    for hook in hooks:
        hook.remove()
    at = lambda x: [[[round(v, 6) for v in x[p, t].float().tolist()] for t in POSITIONS] for p in range(len(tokens))]
    return dict(
        logits=at(out.logits),
        # Before each layer; the last entry that transformers gives has been normed.
        hidden=[at(h) for h in out.hidden_states[:-1]],
        experts=[[c.view(len(tokens), LENGTH, -1)[p].tolist() for p in range(len(tokens))] for c in chosen],
    )


def main(folder, *names):
    for name, settings in CONFIGS.items():
        if names and name not in names:
            continue
        settings = dict(settings)
        kind = transformers.DeepseekV3Config if settings["model_type"] == "deepseek_v3" else transformers.DeepseekV2Config
        arguments = {k: v for k, v in settings.items() if k not in ("model_type", "quantization_config")}
        fp8 = "quantization_config" in settings
        config = kind(**json.loads(json.dumps(arguments)), attn_implementation="eager")
        make = transformers.DeepseekV3ForCausalLM if kind is transformers.DeepseekV3Config else transformers.DeepseekV2ForCausalLM
        model = make(config).eval()
        fill(model, fp8_weight if fp8 else weight)
        scale = settings["rope_parameters"]
        factor = 0.1 * scale["mscale_all_dim"] * math.log(scale["factor"]) + 1
        width = settings["qk_nope_head_dim"] + settings["qk_rope_head_dim"]
        got = model.model.layers[0].self_attn.scaling
        if abs(got - width**-0.5 * factor**2) > 1e-6:
            sys.exit(f"transformers {transformers.__version__} leaves out YaRN's factor of the softmax scale ({got})")
        tokens = prompts(settings["vocab_size"])
        fixture = dict(made_with=f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}",
                       config=settings, prompts=tokens, positions=POSITIONS, fp32=run(model, tokens),
                       bf16=run(model.to(torch.bfloat16), tokens))  # fmt: skip
        path = os.path.join(folder, name + ".json")
        with open(path, "w") as file:
            json.dump(fixture, file, separators=(",", ":"))
            file.write("\n")
        spread = max(max(row) for p in fixture["fp32"]["logits"] for row in p)
        print(f"{path}: {os.path.getsize(path) >> 10} KiB, largest logit {spread:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
