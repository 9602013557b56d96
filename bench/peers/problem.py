"""Inputs of a case, and the double-precision formula that every output is compared with."""

from __future__ import annotations

import math

import torch

from .cases import LATENT, SCALE, WIDTH, Case

CHECKED_REQUESTS = 24  # at most; the longest, the shortest and an even choice of the others
KEYS_AT_ONCE = 32768  # of the formula, in double


class Problem:
    """A case's tensors: queries, lengths, one page table, and `copies` caches that calls take in turn.

    `cache(i)` is `[pages, page_size, 1, 576]` in bf16. All copies share the page table, so that what a library plans
    from lengths and pages holds for each of them.
    """

    def __init__(self, case: Case, device: torch.device, rotate_bytes: int) -> None:
        self.case, self.device = case, device
        self.copies = max(2, math.ceil(rotate_bytes / case.kv_bytes))
        generator = torch.Generator(device).manual_seed(1)
        pages = sum(case.pages)
        shape = (self.copies, pages, case.page_size, 1, WIDTH)
        self._pool = torch.empty(shape, dtype=torch.bfloat16, device=device)
        for copy in self._pool:
            copy.normal_(generator=generator)
        q_shape = (case.batch, case.seq_q, case.heads_q, WIDTH)
        self.q = torch.empty(q_shape, dtype=torch.bfloat16, device=device).normal_(generator=generator)
        self.page_table = self._table(pages).to(device)
        self.seq_lens = torch.tensor(case.lengths, dtype=torch.int32, device=device)
        self._flat: list[torch.Tensor] = []

    def _table(self, pages: int) -> torch.Tensor:
        """int32 `[b, most pages of a request]`; entries past a request's pages are 0."""
        order = torch.arange(pages, dtype=torch.int32)
        if not self.case.pages_in_order:
            order = order[torch.randperm(pages, generator=torch.Generator().manual_seed(2))]
        table = torch.zeros(self.case.batch, max(self.case.pages), dtype=torch.int32)
        first = 0
        for row, count in enumerate(self.case.pages):
            table[row, :count] = order[first : first + count]
            first += count
        return table

    def cache(self, index: int) -> torch.Tensor:
        return self._pool[index % self.copies]

    @property
    def padded_bytes(self) -> int:
        """Bytes of one cache as `flat_caches` lays it out."""
        return self.case.batch * max(self.case.pages) * self.case.page_size * WIDTH * 2

    def flat_caches(self) -> list[torch.Tensor]:
        """The caches without pages, `[b, longest, 576]`, padded with zeros: for libraries that read no page table."""
        if not self._flat:
            kept = torch.arange(self.case.longest, device=self.device)[None, :, None] < self.seq_lens[:, None, None]
            for i in range(self.copies):
                rows = self.cache(i)[self.page_table.long()].flatten(1, 2)[:, : self.case.longest, 0]
                self._flat.append(rows.contiguous() if self.case.equal else rows * kept)
        return self._flat

    def checked_requests(self) -> list[int]:
        lengths = self.case.lengths
        step = max(1, math.ceil(len(lengths) / (CHECKED_REQUESTS - 2)))
        ends = {lengths.index(min(lengths)), lengths.index(max(lengths)), len(lengths) - 1}
        return sorted(ends | set(range(0, len(lengths), step)))[: CHECKED_REQUESTS + 1]

    def expected(self, index: int = 0) -> dict[int, torch.Tensor]:
        """request -> `[s_q, h_q, 512]` in double, of the checked requests, over `cache(index)`."""
        return {request: self._formula(request, self.cache(index)) for request in self.checked_requests()}

    def _formula(self, request: int, cache: torch.Tensor) -> torch.Tensor:
        case, length = self.case, self.case.lengths[request]
        pages = self.page_table[request, : case.pages[request]].long()
        keys = cache[pages].flatten(0, 2)[:length]
        q = self.q[request].double() * SCALE
        scores = torch.cat([torch.einsum("thd,kd->thk", q, part.double()) for part in keys.split(KEYS_AT_ONCE)], dim=-1)
        seen = torch.arange(length, device=self.device) <= (
            length - case.seq_q + torch.arange(case.seq_q, device=self.device)[:, None]
        )
        weights = torch.softmax(scores.masked_fill(~seen[:, None], -math.inf), dim=-1)
        parts = zip(weights.split(KEYS_AT_ONCE, dim=-1), keys.split(KEYS_AT_ONCE))
        return sum(torch.einsum("thk,kd->thd", w, part[:, :LATENT].double()) for w, part in parts)


def relative_error(out: torch.Tensor, expected: dict[int, torch.Tensor]) -> float:
    """Norm of the difference over the norm of the formula's result, the largest of the requests. NaN stays NaN."""
    errors = [((out[i].double() - want).norm() / want.norm()).item() for i, want in expected.items()]
    return float("nan") if any(math.isnan(e) for e in errors) else max(errors)
