"""The shapes that are timed, and what one decode of each costs."""

from __future__ import annotations

import dataclasses
import random

LATENT = 512  # d_v
ROPE = 64
WIDTH = LATENT + ROPE  # d_qk
ELEMENT_BYTES = 2  # bf16
SCALE = WIDTH**-0.5


@dataclasses.dataclass(frozen=True)
class Case:
    """One decode: `lengths` are the cached tokens of each request, the `seq_q` new ones included."""

    name: str
    heads_q: int
    lengths: tuple[int, ...]
    seq_q: int = 1
    page_size: int = 64
    pages_in_order: bool = False  # else the pages of the pool are handed out in random order
    target_us: float | None = None  # our aim on an H200

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @property
    def mean_length(self) -> float:
        return sum(self.lengths) / self.batch

    @property
    def equal(self) -> bool:
        return min(self.lengths) == self.longest

    @property
    def pages(self) -> list[int]:
        """Pages of each request."""
        return [-(-length // self.page_size) for length in self.lengths]

    @property
    def kv_bytes(self) -> int:
        """Bytes of the pages that one decode reads."""
        return sum(self.pages) * self.page_size * WIDTH * ELEMENT_BYTES

    @property
    def bytes(self) -> int:
        """Bytes that have to move: each cached token once, q and out."""
        rows = self.batch * self.seq_q * self.heads_q
        return (sum(self.lengths) * WIDTH + rows * (WIDTH + LATENT)) * ELEMENT_BYTES

    @property
    def flops(self) -> int:
        """Two products for each pair of a query row and a key that it sees (causal)."""
        pairs = 0
        for length in self.lengths:
            least = max(length - self.seq_q + 1, 1)
            pairs += (least + length) * (length - least + 1) // 2
        return 2 * self.heads_q * pairs * (WIDTH + LATENT)


def equal(batch: int, heads_q: int, length: int, target_us: float | None = None, seq_q: int = 1) -> Case:
    name = f"b{batch} h{heads_q}{f' s_q {seq_q}' if seq_q > 1 else ''} {length}"
    return Case(name, heads_q, (length,) * batch, seq_q, target_us=target_us)


def normal(batch: int, heads_q: int, mean: int, target_us: float | None = None, seq_q: int = 1) -> Case:
    """Lengths of a normal distribution with half the mean as its deviation, at least `seq_q`."""
    draw = random.Random(mean)
    lengths = tuple(max(seq_q, round(draw.gauss(mean, mean / 2))) for _ in range(batch))
    name = f"b{batch} h{heads_q}{f' s_q {seq_q}' if seq_q > 1 else ''} normal({mean}, {mean // 2})"
    return Case(name, heads_q, lengths, seq_q, target_us=target_us)


def between(batch: int, heads_q: int, least: int, most: int, target_us: float | None = None) -> Case:
    draw = random.Random(least)
    lengths = tuple(draw.randint(least, most) for _ in range(batch))
    return Case(f"b{batch} h{heads_q} {least}-{most}", heads_q, lengths, target_us=target_us)


def skewed(heads_q: int, target_us: float | None = None) -> Case:
    """One long request among short ones, in the middle of the batch."""
    lengths = [1024] * 32
    lengths[16] = 131072
    return Case(f"b32 h{heads_q} 1 x 131072 + 31 x 1024", heads_q, tuple(lengths), target_us=target_us)


def tutorial(heads_q: int, length: int, target_us: float | None = None) -> Case:
    """A point of the published tutorial: 128 requests, request i of `length` + 2 i tokens, pages in order."""
    lengths = tuple(length + 2 * i for i in range(128))
    return Case(f"tutorial h{heads_q} {length}", heads_q, lengths, pages_in_order=True, target_us=target_us)
