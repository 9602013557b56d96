"""Prefill of vLLM's MLA layers on CPUs: keys and values are decompressed, attention is `flashmla.prefill`."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

import flashmla


class FlashMLAPrefillBackend(MLAPrefillBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]

    @staticmethod
    def get_name() -> str:
        return "FLASHMLA_CPU"

    @classmethod
    def supports_compute_capability(cls, device_capability: Any) -> bool:
        return device_capability is None  # CPUs have none, and flashmla prefills on CPUs

    def supports_out(self) -> bool:
        return True

    def _prefill(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first_q: torch.Tensor, first_k: torch.Tensor,
        causal: bool, out: torch.Tensor | None, return_lse: bool,
    ) -> Any:  # fmt: skip
        return flashmla.prefill(
            q, k, v, first_q, first_k, softmax_scale=self.scale, causal=causal, out=out, return_lse=return_lse,
            empty_lse="-inf", threads=torch.get_num_threads(),
        )  # fmt: skip

    def run_prefill_new_tokens(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        return_softmax_lse: bool,
        out: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
    ) -> Any:
        """New tokens among themselves: q, k `[tokens, heads, 192]`, v `[tokens, heads, 128]`; causal."""
        if output_scale is not None:
            raise NotImplementedError("output_scale: got a scale; flashmla's prefill writes plain outputs, want None")
        first = self._prefill_metadata.query_start_loc
        return self._prefill(q, k, v, first, first, True, out, return_softmax_lse)

    def run_prefill_context_chunk(
        self, chunk: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor | None = None
    ) -> Any:
        """New tokens over a chunk of what is cached: all of it is visible. Returns the output and fp32 `[heads, tokens]`."""
        return self._prefill(q, k, v, chunk.query_start_loc, chunk.cu_seq_lens, False, out, True)
