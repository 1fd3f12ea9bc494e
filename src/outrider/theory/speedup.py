"""Speed-up over plain decoding, the best K, and what acceptance a method needs.

A step takes K draft forwards of ``draft_cost`` each, in plain steps' time, and one verify step of K + 1 rows:

    speed-up(K) = E[tokens](K) / (K * draft_cost + t(K + 1) / t(1))

With t flat this is Leviathan et al. 2023, theorem 3.8. ``verify`` is the cost curve t(rows); only ratios of it count.
With ``batch`` sequences beside one another, t is read at ``batch * (K + 1)`` rows, and plain decoding at ``batch``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.errors import ConfigError
from outrider.theory.expected import chain_tokens, check_rates, constant_tokens

Curve = Callable[[int], float]
_STEPS = 60  # of bisection: to 1e-18


def flat(rows: int) -> float:
    """The curve of a machine on which rows are free."""
    return 1.0


@dataclass(frozen=True, slots=True)
class Point:
    """One K. ``tokens``: expected a step; ``cost``: of a step, in plain steps; ``speed_up``: their ratio."""

    num_speculative_tokens: int
    tokens: float
    cost: float

    @property
    def speed_up(self) -> float:
        """Tokens per second over plain decoding's."""
        return self.tokens / self.cost


def step_cost(
    num_speculative_tokens: int, draft_cost: float, verify: Curve = flat, batch: int = 1, overhead: float = 0.0
) -> float:
    """Time of a step, in plain steps: overhead + K * draft_cost + t(batch * (K + 1)) / t(batch).

    ``draft_cost``: one draft forward for the whole batch over a plain step of it; ``overhead``: what a step with a
    draft takes beside, in the same unit. Raises ConfigError when a number is impossible.
    """
    if num_speculative_tokens < 0 or batch < 1:
        raise ConfigError(f"num_speculative_tokens={num_speculative_tokens}, batch={batch}: at least 0 and 1")
    if draft_cost < 0 or overhead < 0:
        raise ConfigError(f"draft_cost={draft_cost}, overhead={overhead}: they cannot be negative")
    if num_speculative_tokens == 0:
        return 1.0
    verified = verify(batch * (num_speculative_tokens + 1)) / verify(batch)
    return overhead + num_speculative_tokens * draft_cost + verified


def point(
    rates: Sequence[float],
    num_speculative_tokens: int,
    draft_cost: float,
    verify: Curve = flat,
    batch: int = 1,
    overhead: float = 0.0,
) -> Point:
    """Tokens, cost and speed-up of one K; ``rates``: conditional acceptances, the last one repeats."""
    tokens = chain_tokens(rates, num_speculative_tokens)
    return Point(num_speculative_tokens, tokens, step_cost(num_speculative_tokens, draft_cost, verify, batch, overhead))


def speed_up(
    rates: Sequence[float],
    num_speculative_tokens: int,
    draft_cost: float,
    verify: Curve = flat,
    batch: int = 1,
    overhead: float = 0.0,
) -> float:
    """Of one K; see the module."""
    return point(rates, num_speculative_tokens, draft_cost, verify, batch, overhead).speed_up


def best_k(
    rates: Sequence[float],
    draft_cost: float,
    verify: Curve = flat,
    batch: int = 1,
    overhead: float = 0.0,
    max_tokens: int = 16,
) -> Point:
    """The K of 0 to ``max_tokens`` with the highest speed-up; of equal ones the smallest. K = 0 is plain decoding."""
    points = [point(rates, k, draft_cost, verify, batch, overhead) for k in range(max_tokens + 1)]
    return max(points, key=lambda each: (each.speed_up, -each.num_speculative_tokens))


def break_even(
    num_speculative_tokens: int, draft_cost: float, verify: Curve = flat, batch: int = 1, overhead: float = 0.0
) -> float | None:
    """The constant conditional acceptance at which a step with K drafted tokens is as fast as plain decoding.

    The root of (1 - a^(K+1)) / (1 - a) = cost, by bisection; None when not even full acceptance pays (cost > K + 1).
    """
    cost = step_cost(num_speculative_tokens, draft_cost, verify, batch, overhead)
    if cost > num_speculative_tokens + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if constant_tokens(middle, num_speculative_tokens) < cost else (low, middle)
    return high


def least_gain(alpha: float, draft_cost: float) -> float:
    """(1 + alpha) / (1 + c): what K = 1 brings where rows are free, a lower bound of the best K's speed-up when
    alpha > c (Leviathan et al. 2023, corollary 3.9)."""
    check_rates([alpha], "alpha")
    return (1.0 + alpha) / (1.0 + draft_cost)


def utility(tokens: float, cost: float) -> float:
    """Cascade's utility: tokens of a step with speculation over a plain step's one, over the ratio of their times.
    Below 1 speculation slows down (Saxena et al., "Utility-Driven Speculative Decoding for Mixture-of-Experts",
    arXiv 2506.20675). Raises ConfigError for a cost that is not positive."""
    if cost <= 0:
        raise ConfigError(f"cost={cost}: a step's time over a plain step's; it is positive")
    return tokens / cost
