"""How fast the machine is now, against the stored cost curve: other processes, clocks and memory come and go.

Factors at 1, 2, 4, 8 and 16 rows correct the curve; between them the correction goes with the logarithm of the rows.
Few rows wait for memory and many compute, and a step behind drafts finds colder caches than the curve's measurement, so
each factor is learnt by steps like it; but most of what changes changes all steps alike, and the others follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_PLACES = 5  # factors, one for each doubling of the rows
_STEP = 0.05  # share of a step's surprise that is taken over
_NEXT = 0.8  # of that, by the factor next to it
_DRIFT = 0.002  # per step: what is not seen comes to resemble what is
_OUTLIER = 2.0  # a step this many times off was interrupted
_RANGE = 8.0  # factors stay within this of the curve


class Pace:
    """Correction factors of a cost curve."""

    def __init__(self) -> None:
        self._factors = [1.0] * _PLACES

    def factor(self, rows: int) -> float:
        """Seconds of a step of ``rows`` rows now, over those of the curve."""
        place = _place(rows)
        first = min(int(place), _PLACES - 2)
        share = place - first
        return (1.0 - share) * self._factors[first] + share * self._factors[first + 1]

    def corrected(self, curve: Callable[[int], float]) -> Callable[[int], float]:
        """``curve`` as it is now."""
        return lambda rows: curve(rows) * self.factor(rows)

    def observe(self, rows: int, expected: float, seconds: float) -> None:
        """A step of ``rows`` rows took ``seconds``; the curve says ``expected``."""
        place, before = _place(rows), self.factor(rows)
        seen = min(max(seconds / expected, before / _OUTLIER), before * _OUTLIER)
        for at, factor in enumerate(self._factors):
            step = _STEP * _NEXT ** abs(at - place) * (seen - before) + _DRIFT * (seen - factor)
            self._factors[at] = min(max(factor + step, 1.0 / _RANGE), _RANGE)


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


def _place(rows: int) -> float:
    return min(_PLACES - 1.0, math.log2(max(1, rows)))
