"""This library, through the custom op for torch tensors."""

from __future__ import annotations

import torch

from ..cases import LATENT, SCALE, Case
from .base import Adapter


class Ours(Adapter):
    library, distribution = "flashmla", "flashmla"
    devices = ("cuda", "cpu")
    kernel = "auto"  # replaced by what the library chose, see kernel_of

    def load(self):
        import flashmla  # noqa: F401

    def prepare(self, problem):
        import flashmla

        case = problem.case
        out = problem.q.new_empty(case.batch, case.seq_q, case.heads_q, LATENT)

        def call(index):
            flashmla.decode(
                problem.q, problem.cache(index), problem.page_table, problem.seq_lens, softmax_scale=SCALE, causal=True,
                out=out,
            )  # fmt: skip
            return out

        return call

    def kernel_of(self, case: Case, device: torch.device) -> str:
        """The kernel that the library chooses for the case."""
        import flashmla

        return flashmla.explain_decode(
            batch=case.batch, seq_q=case.seq_q, heads_q=case.heads_q, seq_k=case.longest, page_size=case.page_size,
            dtype="bf16", causal=True, device=device.type,
        ).kernel  # fmt: skip

    def version(self):
        import flashmla

        return flashmla.__version__
