"""Two ways to write absorbed attention in plain torch. Neither reads pages: both get the keys gathered for nothing."""

from __future__ import annotations

import torch

from ..cases import LATENT, SCALE
from .base import Adapter

MOST_PADDED_BYTES = 12 << 30  # of two flat caches
MOST_SCORE_BYTES = 2 << 30  # in fp32


class _Torch(Adapter):
    library, distribution = "torch", "torch"
    devices = ("cuda", "cpu")

    def unsupported(self, case):
        scores = case.batch * case.seq_q * case.heads_q * case.longest * 4
        padded = 2 * case.batch * max(case.pages) * case.page_size * 1152
        if scores > MOST_SCORE_BYTES or padded > MOST_PADDED_BYTES:
            sizes = f"{scores / 2**30:.1f} GiB of scores and {padded / 2**30:.1f} GiB of padded keys"
            return f"{sizes}: more than this bench gives it"
        return None

    def version(self):
        return torch.__version__


def _hidden(problem):
    """bool `[b, s_q * h_q, longest]`, true where a query row does not see a key; None where every row sees all."""
    case = problem.case
    if case.equal and case.seq_q == 1:
        return None
    place = torch.arange(case.seq_q, device=problem.device).repeat_interleave(case.heads_q)
    last = problem.seq_lens[:, None] - case.seq_q + place  # last key that the row sees
    return torch.arange(case.longest, device=problem.device) > last[:, :, None]


class TorchMatmul(_Torch):
    """Two batched products with a softmax in between."""

    kernel = "matmul"

    def prepare(self, problem):
        case, keys, hidden = problem.case, problem.flat_caches(), _hidden(problem)
        rows = problem.q.flatten(1, 2)

        def call(index):
            cache = keys[index % len(keys)]
            scores = torch.bmm(rows, cache.transpose(1, 2)).mul_(SCALE)
            if hidden is not None:
                scores.masked_fill_(hidden, float("-inf"))
            out = torch.bmm(torch.softmax(scores, dim=-1), cache[..., :LATENT])
            return out.view(case.batch, case.seq_q, case.heads_q, LATENT)

        return call


class TorchSdpa(_Torch):
    """torch's scaled_dot_product_attention; query heads stand where query tokens usually do: no key is copied."""

    kernel = "sdpa"

    def prepare(self, problem):
        case, keys, hidden = problem.case, problem.flat_caches(), _hidden(problem)
        rows = problem.q.flatten(1, 2)[:, None]
        mask = None if hidden is None else ~hidden[:, None]

        def call(index):
            cache = keys[index % len(keys)][:, None]
            out = torch.nn.functional.scaled_dot_product_attention(rows, cache, cache[..., :LATENT], mask, scale=SCALE)
            return out.view(case.batch, case.seq_q, case.heads_q, LATENT)

        return call
