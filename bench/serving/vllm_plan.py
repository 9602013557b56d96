"""Which cases of vllm_speed.py fit into a GPU's memory, and how large each back end's cache is to be."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
from typing import Any

from vllm_engine import BACK_ENDS, EXTRA_TOKENS, PAGE

RESERVE_GIB = 3.5  # of a process, beside weights and cache: the CUDA context, activations, graphs; 1.9 at rest
GIB = 2**30


def kv_bytes_of(config: dict[str, Any], mla: bool) -> int:
    """Bytes of the cache for one token, in bf16."""
    if mla:
        values = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:  # vLLM pads values to the width of keys
        values = 2 * config["num_key_value_heads"] * (config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    return 2 * values * config["num_hidden_layers"]


def weight_gib_of(config: dict[str, Any]) -> float:
    """Of a DeepSeek-V2 without a latent for queries, in bf16."""
    c, hidden = config, config["hidden_size"]
    heads, latent = c["num_attention_heads"], c["kv_lora_rank"]
    attention = (
        heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]) * hidden + (latent + c["qk_rope_head_dim"]) * hidden
    )
    attention += heads * (c["qk_nope_head_dim"] + c["v_head_dim"]) * latent + heads * c["v_head_dim"] * hidden
    dense = c["first_k_dense_replace"]
    expert = 3 * hidden * c["moe_intermediate_size"]
    moe = (c["n_routed_experts"] + c["n_shared_experts"]) * expert + c["n_routed_experts"] * hidden
    layers = c["num_hidden_layers"]
    values = layers * attention + dense * 3 * hidden * c["intermediate_size"] + (layers - dense) * moe
    return 2 * (values + 2 * c["vocab_size"] * hidden) / GIB


def tokens_of(batch: int, context: int, steps: int) -> int:
    """Tokens in the pages of a case."""
    return batch * -(-(context + steps + EXTRA_TOKENS) // PAGE) * PAGE


def gpu_gib() -> float | None:
    """Memory of the first GPU that is free, without a CUDA context in this process."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError, ValueError, IndexError):
        query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
        return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]) / 1024
    return None


def longest_request(options: argparse.Namespace) -> int:
    """What vLLM has to serve, and its cache has to hold."""
    return max(options.max_model_len, max(options.contexts) + options.steps + EXTRA_TOKENS)


def cache_tokens(cases: list[tuple[int, int]], options: argparse.Namespace) -> int:
    """Of a cache for the largest of the cases. Prompts that displace one another are computed again, untimed."""
    largest = max(tokens_of(batch, context, options.steps) for batch, context in cases)
    return max(largest, tokens_of(1, longest_request(options), 0)) + 2 * PAGE


def plan_caches(
    names: list[str], config: dict[str, Any], cases: list[tuple[int, int]], options: argparse.Namespace
) -> dict[str, int]:
    """Bytes of each worker's cache: MLA has all that the cases want, MHA that of the cases for which there is room.

    A name for which no case has room is missing.
    """
    size_of = {name: kv_bytes_of(config, BACK_ENDS[name].mla) for name in names}
    sizes = {name: cache_tokens(cases, options) * size_of[name] for name in names}
    given = {name: int(gib * GIB) for name, gib in options.kv_gib if name in sizes}
    sizes.update(given)
    free = options.gpu_gib or gpu_gib()
    others = [name for name in names if not BACK_ENDS[name].mla and name not in given]
    if free is not None and others:
        taken = len(names) * (weight_gib_of(config) + RESERVE_GIB)
        left = (free - taken) * GIB - sum(size for name, size in sizes.items() if name not in others)
        for name in others:
            room = left / len(others) / size_of[name]
            fitting = [case for case in cases if cache_tokens([case], options) <= room]
            if fitting:
                sizes[name] = cache_tokens(fitting, options) * size_of[name]
            else:
                del sizes[name]
    return sizes
