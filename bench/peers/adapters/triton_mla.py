"""Triton: vLLM's MLA decode kernel where it can be imported, with the splits that vLLM chooses; else `triton_kernel`, a
plain kernel of ours without tuning."""

from __future__ import annotations

import importlib
import importlib.metadata

import torch

from ..cases import LATENT, SCALE
from .base import Adapter, NotInstalled, import_peer

VLLM_KERNEL = "vllm.v1.attention.ops.triton_decode_attention"


class TritonMLA(Adapter):
    library, kernel, distribution = "triton", "vllm", "triton"

    def load(self):
        import_peer("triton", "triton")
        try:
            self._decode = importlib.import_module(VLLM_KERNEL).decode_attention_fwd
            self.kernel = "vllm"
        except Exception:  # not there, or not usable without the rest of vLLM
            try:
                from . import triton_kernel
            except ImportError as error:
                raise NotInstalled(f"triton cannot be used: {error}") from error
            self._decode, self._own, self.kernel = None, triton_kernel, "plain, untuned"

    def unsupported(self, case):
        if case.seq_q > 1:
            return "s_q above 1: the kernel takes one new token a request"
        return None

    def prepare(self, problem):
        case = problem.case
        processors = torch.cuda.get_device_properties(problem.device).multi_processor_count
        wanted = 1 << max(0, (max(1, case.longest // 512) - 1).bit_length())  # a power of two, 512 keys and more each
        splits = min(wanted, 2 * processors)
        q = problem.q[:, 0]
        out = q.new_zeros(case.batch, case.heads_q, LATENT)
        lse = q.new_zeros(case.batch, case.heads_q)
        parts = q.new_empty(case.batch, case.heads_q, splits, LATENT + 1, dtype=torch.float32)
        one = torch.ones((), device=problem.device)

        def call(index):
            cache = problem.cache(index)
            if self._decode is None:
                self._own.decode(q, cache, problem.page_table, problem.seq_lens, parts, out, SCALE)
            else:
                self._decode(
                    q, cache, cache[..., :LATENT], out, lse, problem.page_table, problem.seq_lens, parts, splits, SCALE,
                    case.page_size, k_scale=one, v_scale=one, is_mla=True,
                )  # fmt: skip
            return out[:, None]

        return call

    def version(self):
        version = f"triton {super().version()}"
        return version if self._decode is None else f"{version}, vllm {importlib.metadata.version('vllm')}"
