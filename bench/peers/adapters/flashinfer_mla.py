"""FlashInfer's MLA decode over a paged cache, with its FlashAttention-2 and -3 templates."""

from __future__ import annotations

import warnings

import torch

from ..cases import LATENT, ROPE, SCALE
from .base import Adapter, import_peer

WORKSPACE_BYTES = 256 << 20


class FlashInfer(Adapter):
    distribution = "flashinfer-python"

    def __init__(self, backend: str) -> None:
        self.kernel = backend
        self.library = f"flashinfer_{backend}"

    def load(self):
        self._mla = import_peer("flashinfer.mla", "flashinfer-python")

    def prepare(self, problem):
        case = problem.case
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=problem.device)
        wrapper = self._mla.BatchMLAPagedAttentionWrapper(workspace, backend=self.kernel)
        counts = torch.tensor([0, *case.pages], dtype=torch.int32, device=problem.device)
        pages = torch.cat([row[:count] for row, count in zip(problem.page_table, case.pages)])
        rows = problem.q.flatten(0, 1)
        latent, rope = rows[..., :LATENT].contiguous(), rows[..., LATENT:].contiguous()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its form of arguments
            wrapper.plan(
                torch.arange(case.batch + 1, dtype=torch.int32, device=problem.device) * case.seq_q,
                counts.cumsum(0).int(), pages, problem.seq_lens, case.heads_q, LATENT, ROPE, case.page_size, True,
                SCALE, torch.bfloat16, torch.bfloat16,
            )  # fmt: skip
        out = torch.empty_like(latent)

        def call(index):
            cache = problem.cache(index)[:, :, 0]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wrapper.run(latent, rope, cache[..., :LATENT], cache[..., LATENT:], out=out)
            return out.view(case.batch, case.seq_q, case.heads_q, LATENT)

        return call
