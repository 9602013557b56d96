"""Shapes of results, for every framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def decode_results(q: Sequence[Any], ragged: bool, latent_dim: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Shapes of `out` and `lse` for a `q` of this shape. A `q` of wrong rank gives empty ones: the C++ side refuses it."""
    if ragged and len(q) == 3:
        total, heads, _ = q
        return (total, heads, latent_dim), (heads, total)
    if not ragged and len(q) == 4:
        batch, tokens, heads, _ = q
        return (batch, tokens, heads, latent_dim), (batch, heads, tokens)
    return (0,), (0,)


def prefill_results(q: Sequence[Any], v: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Shapes of `out` and `lse` of a prefill; ranks that are wrong give empty ones."""
    if len(q) == 3 and len(v) == 3:
        return (q[0], q[1], v[2]), (q[1], q[0])
    return (0,), (0,)


def bounded_latent_dim(q: Sequence[int], latent_dim: int) -> int:
    """`latent_dim` as far as it can be right, so that a wild one is refused by name and allocates nothing first."""
    return min(max(latent_dim, 0), q[-1]) if len(q) > 0 else 0
