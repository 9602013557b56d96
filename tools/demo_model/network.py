"""The DeepSeek-V2 architecture in plain torch, small: what train.py trains. Names are those of the published checkpoints."""

import math

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = dict(
    architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", torch_dtype="bfloat16", hidden_act="silu",
    hidden_size=192, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None,
    kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, intermediate_size=384,
    moe_intermediate_size=96, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1,
    topk_method="greedy", scoring_func="softmax", norm_topk_prob=False, routed_scaling_factor=1.0,
    first_k_dense_replace=1, moe_layer_freq=1, rms_norm_eps=1e-6, rope_theta=10000.0, max_position_embeddings=2048,
    rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=512, beta_fast=32, beta_slow=1,
                      mscale=0.707, mscale_all_dim=0.707),
    attention_bias=False, tie_word_embeddings=False,
)  # fmt: skip


def yarn_frequencies(config):
    """Rotation frequencies [rope / 2] and the factor of the softmax scale."""
    dim, base, scaling = config["qk_rope_head_dim"], config["rope_theta"], config["rope_scaling"]
    inverse = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def correction(rotations):
        original = scaling["original_max_position_embeddings"]
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(correction(scaling["beta_fast"])), 0)
    high = min(math.ceil(correction(scaling["beta_slow"])), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    frequencies = inverse / scaling["factor"] * ramp + inverse * (1 - ramp)
    mscale = 0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1
    return frequencies.float(), mscale**2


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    """Neighbouring pairs of the last dimension; x [b, s, heads, rope], cos and sin [s, rope / 2]."""
    pairs = x.float().unflatten(-1, (-1, 2))
    cos, sin = cos[None, :, None], sin[None, :, None]
    even, odd = pairs[..., 0], pairs[..., 1]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.nope, self.rope, self.v = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]  # fmt: skip
        self.latent = c["kv_lora_rank"]
        self.q_proj = nn.Linear(c["hidden_size"], self.heads * (self.nope + self.rope), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(c["hidden_size"], self.latent + self.rope, bias=False)
        self.kv_a_layernorm = RMSNorm(self.latent, c["rms_norm_eps"])
        self.kv_b_proj = nn.Linear(self.latent, self.heads * (self.nope + self.v), bias=False)
        self.o_proj = nn.Linear(self.heads * self.v, c["hidden_size"], bias=False)
        self.scale = (self.nope + self.rope) ** -0.5 * yarn_frequencies(c)[1]

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        q_nope, q_rope = self.q_proj(x).view(b, s, self.heads, -1).split((self.nope, self.rope), -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((self.latent, self.rope), -1)
        k_nope, v = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, s, self.heads, -1).split((self.nope, self.v), -1)
        k_rope = rotate(k_rope[:, :, None], cos, sin).expand(-1, -1, self.heads, -1)
        q = torch.cat((q_nope, rotate(q_rope, cos, sin)), -1)
        k = torch.cat((k_nope, k_rope), -1)
        v = F.pad(v, (0, q.shape[-1] - self.v))  # equal widths let the fused kernel run
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, scale=self.scale)
        return self.o_proj(out[..., : self.v].transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MoE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.top_k = c["num_experts_per_tok"]
        self.gate = nn.Linear(c["hidden_size"], c["n_routed_experts"], bias=False)
        width = c["moe_intermediate_size"]
        self.experts = nn.ModuleList(MLP(c["hidden_size"], width) for _ in range(c["n_routed_experts"]))
        self.shared_experts = MLP(c["hidden_size"], width * c["n_shared_experts"])

    def forward(self, x):
        scores = F.linear(x.float(), self.gate.weight.float()).softmax(-1)
        top, chosen = scores.topk(self.top_k, -1)
        weights = torch.zeros_like(scores).scatter(-1, chosen, top)  # few and small experts: all run, masked
        out = self.shared_experts(x)
        for e, expert in enumerate(self.experts):
            out = out + expert(x) * weights[..., e : e + 1].to(x.dtype)
        used = (weights > 0).float().mean((0, 1))
        balance = scores.shape[-1] / self.top_k * (used * scores.mean((0, 1))).sum()
        return out, balance


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        dense = index < c["first_k_dense_replace"]
        self.mlp = MLP(c["hidden_size"], c["intermediate_size"]) if dense else MoE(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        y = self.mlp(self.post_attention_layernorm(x))
        y, balance = y if isinstance(y, tuple) else (y, 0.0)
        return x + y, balance


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class DeepseekV2(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = Body(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        self.register_buffer("frequencies", yarn_frequencies(config)[0], persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 if parameter.shape[0] == config["vocab_size"] else parameter.shape[1] ** -0.5)

    def forward(self, tokens):
        """Logits [b, s, vocab] and the experts' balance loss."""
        angle = torch.arange(tokens.shape[1], device=tokens.device).float()[:, None] * self.frequencies
        cos, sin = angle.cos(), angle.sin()
        x = self.model.embed_tokens(tokens)
        balance = 0.0
        for layer in self.model.layers:
            x, part = layer(x, cos, sin)
            balance = balance + part
        return self.lm_head(self.model.norm(x)), balance
