"""How fast the machine is now, against the stored cost curve: other processes, clocks and memory come and go.

Two factors correct the curve, one for steps of few rows, which wait for memory, and one for many, which compute;
between them the correction goes with the logarithm of the rows. Every plain or verifying step moves them a little.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_MANY = 8  # rows from which on a step counts as one of many rows altogether
_STEP = 0.05  # share of a step's surprise that is taken over
_DRIFT = 0.002  # per step: what is not seen comes to resemble what is
_OUTLIER = 2.0  # a step this many times off was interrupted
_RANGE = 8.0  # factors stay within this of the curve


class Pace:
    """Correction factors of a cost curve."""

    def __init__(self) -> None:
        self._few = self._many = 1.0

    def factor(self, rows: int) -> float:
        """Seconds of a step of ``rows`` rows now, over those of the curve."""
        share = _share(rows)
        return (1.0 - share) * self._few + share * self._many

    def corrected(self, curve: Callable[[int], float]) -> Callable[[int], float]:
        """``curve`` as it is now."""
        return lambda rows: curve(rows) * self.factor(rows)

    def observe(self, rows: int, expected: float, seconds: float) -> None:
        """A step of ``rows`` rows took ``seconds``; the curve says ``expected``."""
        before = self.factor(rows)
        seen = min(max(seconds / expected, before / _OUTLIER), before * _OUTLIER)
        share, surprise = _share(rows), seen - before
        few = self._few + _STEP * (1.0 - share) * surprise
        many = self._many + _STEP * share * surprise
        self._few = _bounded(few + _DRIFT * (many - few))
        self._many = _bounded(many + _DRIFT * (few - many))


class LiveCurve:
    """A cost curve as it is now: every forward that is timed corrects it a little."""

    def __init__(self, curve: Callable[[int], float]) -> None:
        self._curve, self._pace = curve, Pace()

    def __call__(self, rows: int) -> float:
        """Seconds of a forward of so many rows."""
        return self._curve(rows) * self._pace.factor(rows)

    def observe(self, rows: int, seconds: float) -> None:
        """A forward of ``rows`` rows took ``seconds``."""
        self._pace.observe(rows, self._curve(rows), seconds)


def _share(rows: int) -> float:
    return min(1.0, math.log2(max(1, rows)) / math.log2(_MANY))


def _bounded(factor: float) -> float:
    return min(max(factor, 1.0 / _RANGE), _RANGE)
