"""When the acceptance of a drafter has fallen for good: a cumulative sum over the steps (CUSUM; Page, Biometrika 1954).

Each verified position of a draft, all before it accepted, is a coin whose chance is the conditional acceptance. The
monitor learns that chance from the first positions and then sums the log-likelihood ratio of a chance that is lower by
``drop`` against it; the sum never goes below zero, and an alarm is raised when it passes ``limit``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Cause = Literal["prompts", "target"]


@dataclass(slots=True)
class DriftMonitor:
    """``learn``: positions that set the reference; ``drop``: the fall that matters, as a share of it; ``limit``: of the
    sum; a false alarm comes about every ``exp(limit)`` positions. The sum goes no higher than twice the limit, so that
    it is back soon when acceptance is."""

    learn: int = 400
    drop: float = 0.25
    limit: float = 8.0
    _tested: int = 0
    _accepted: int = 0
    _sum: float = 0.0

    @property
    def reference(self) -> float | None:
        """The acceptance that later steps are held against; None while it is being learnt."""
        return self._accepted / self._tested if self._tested >= self.learn else None

    @property
    def level(self) -> float:
        """The sum, as a share of the limit."""
        return self._sum / self.limit

    def observe(self, accepted: int, tested: int) -> bool:
        """Add a step's positions; whether acceptance has fallen."""
        if self._tested < self.learn:
            self._tested += tested
            self._accepted += accepted
            return False
        p = min(0.99, max(0.02, self._accepted / self._tested))
        q = p * (1.0 - self.drop)
        gain = accepted * math.log(q / p) + (tested - accepted) * math.log((1.0 - q) / (1.0 - p))
        self._sum = min(2.0 * self.limit, max(0.0, self._sum + gain))
        return self._sum > self.limit

    def reset(self, relearn: bool = True) -> None:
        """Start anew: after an alarm, or, with ``relearn``, after the drafter was changed."""
        self._sum = 0.0
        if relearn:
            self._tested = self._accepted = 0


def cause_of(recorded: float, found: float, slack: float = 0.1) -> Cause:
    """What changed when acceptance has fallen: on a fixed text the head agreed with the target in a share ``recorded``
    of the positions when it was trained, and does in ``found`` now. Where that holds, the prompts did."""
    return "target" if found < recorded - slack else "prompts"
