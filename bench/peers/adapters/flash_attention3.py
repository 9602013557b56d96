"""FlashAttention-3 with `q_v`, as vLLM's wheel brings it: q and k are the RoPE parts, `q_v` and v the latent parts. It
is loaded as a library of torch ops; vLLM itself is not imported."""

from __future__ import annotations

import importlib.util
import os
import pathlib

import torch

from ..cases import LATENT, ROPE, SCALE
from .base import Adapter, NotInstalled

FILE = "vllm_flash_attn/_vllm_fa3_C.abi3.so"


class FlashAttention3(Adapter):
    library, kernel, distribution = "fa3", "fa3_qv", "vllm"

    def load(self):
        named = os.environ.get("FLASHMLA_PEER_FA3")
        spec = None if named else importlib.util.find_spec("vllm")
        folders = list(spec.submodule_search_locations or ()) if spec else []
        paths = [pathlib.Path(named)] if named else [pathlib.Path(folder) / FILE for folder in folders]
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            raise NotInstalled(f"not installed: pip install vllm (or FLASHMLA_PEER_FA3=PATH of its {FILE})")
        torch.ops.load_library(str(path))

    def unsupported(self, case):
        return None

    def prepare(self, problem):
        ops, case = torch.ops._vllm_fa3_C, problem.case
        heads, longest = case.heads_q, case.longest
        rows = problem.q.flatten(0, 1)
        latent, rope = rows[..., :LATENT].contiguous(), rows[..., LATENT:].contiguous()
        first_row = torch.arange(case.batch + 1, dtype=torch.int32, device=problem.device) * case.seq_q
        window, softcap, splits, margin = (-1, -1), 0.0, 0, 0  # splits 0: its own choice
        plan = ops.get_scheduler_metadata(
            case.batch, case.seq_q, longest, heads, 1, ROPE, LATENT, torch.bfloat16, problem.seq_lens, first_row,
            None, None, None, None, case.page_size, 0, True, *window, False, splits, None, margin,
        )  # fmt: skip

        def call(index):
            cache = problem.cache(index)
            new_keys = rotary = descales = (None, None, None)
            results = ops.fwd(
                rope, cache[..., LATENT:], cache[..., :LATENT], None, None, latent, None, first_row, *new_keys,
                problem.seq_lens, case.seq_q, longest, problem.page_table, None, None, *rotary, *descales, SCALE, True,
                *window, softcap, True, plan, splits, None, margin, None, 1, 0, None,
            )  # fmt: skip
            return results[0].view(case.batch, case.seq_q, heads, LATENT)

        return call
