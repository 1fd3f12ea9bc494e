"""A histogram that costs a bisection an entry."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts values by upper ``bounds``, which ascend; a value on a bound counts below it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        """As it is now."""
        out = Histogram(self.bounds)
        out.counts, out.total = list(self.counts), self.total
        return out

    @property
    def cumulative(self) -> list[int]:
        """How many values were at most each bound, and how many there were."""
        return list(accumulate(self.counts))
