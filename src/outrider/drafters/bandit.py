"""A bandit over drafters whose reward is tokens per second: Thompson sampling with forgetting.

An arm's rate is (tokens) / (seconds) over its plays, older plays fading. Its sample is a normal draw around the rate,
as wide as the plays scatter over the root of their number; an arm that was never played is played first. The draws
follow from the seed and the name of the play alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

_FADE = 0.97  # of every arm's plays, with each play of any
_SCATTER = 0.3  # relative, of the rates of single plays while few are known
_TRUST = 4.0  # plays that this guess is worth
_FORGOTTEN = 1e-3  # plays below which an arm counts as never played


@dataclass(slots=True)
class _Arm:
    """Faded sums over plays."""

    plays: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0  # of single plays' rates
    rates: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second over all plays."""
        return self.tokens / self.seconds

    @property
    def spread(self) -> float:
        """Standard deviation of the estimate of ``rate``."""
        mean = self.rates / self.plays
        seen = max(0.0, self.squares - self.plays * mean * mean)
        variance = (seen + _TRUST * (_SCATTER * mean) ** 2) / (self.plays + _TRUST)
        return math.sqrt(variance / self.plays)


class Bandit:
    """Chooses among ``count`` arms."""

    def __init__(self, count: int, seed: int) -> None:
        self._arms = [_Arm() for _ in range(count)]
        self._seed = seed

    def pick(self, play: Sequence[object], allowed: Sequence[int] | None = None) -> int:
        """The arm for the play of that name; the same name in the same state picks the same arm."""
        arms = list(range(len(self._arms))) if allowed is None else list(allowed)
        unplayed = [arm for arm in arms if self._arms[arm].plays < _FORGOTTEN]
        if unplayed:
            return unplayed[0]
        noise = random.Random(repr((self._seed, *play)))  # not for secrets
        return max(arms, key=lambda arm: noise.gauss(self._arms[arm].rate, self._arms[arm].spread))

    def reward(self, arm: int, tokens: float, seconds: float) -> None:
        """A play of ``arm`` made ``tokens`` in ``seconds``."""
        for each in self._arms:
            each.plays *= _FADE
            each.tokens *= _FADE
            each.seconds *= _FADE
            each.squares *= _FADE
            each.rates *= _FADE
        mine, rate = self._arms[arm], tokens / seconds
        mine.plays += 1.0
        mine.tokens += tokens
        mine.seconds += seconds
        mine.rates += rate
        mine.squares += rate * rate
