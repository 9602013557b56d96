"""Median and spread of repeated times."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Spread:
    median_us: float
    p10_us: float
    p90_us: float
    count: int


def spread_of(times_us: Sequence[float]) -> Spread:
    ordered = sorted(times_us)

    def at(share: float) -> float:
        return ordered[round(share * (len(ordered) - 1))]

    return Spread(at(0.5), at(0.1), at(0.9), len(ordered))
