"""Load schedules: how many draft tokens a step at which batch size, given by hand or computed from measurements.

The law is the planner's, for one drafter and a batch of b alike sequences. With c[i] the chance that draft token i is
accepted where all before it were, t(rows) the seconds of a target's forward and d(rows) those of a draft's:

    E(K) = 1 + c[0] + c[0] c[1] + ... + c[0] ... c[K-1]          expected tokens of a sequence and step
    K(b) = argmax over K of E(K) / (t(b (1 + K)) + K d(b))       0 where speculation does not pay

(E as in Leviathan et al., https://arxiv.org/abs/2211.17192, with a chance of its own for every position.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from outrider.config import Settings
from outrider.errors import ConfigError, why_unread


class Level(NamedTuple):
    """``num_tokens`` draft tokens a step for batches of ``first`` to ``last`` sequences, both included."""

    first: int
    last: int
    num_tokens: int


class LoadSchedule(Settings):
    """Levels without gaps from a batch of 1 on; neighbours with one K are one level."""

    levels: tuple[Level, ...] = Field(min_length=1)

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> LoadSchedule:
        """From rows [first batch, last batch, K]. Raises ConfigError for gaps, overlaps and values out of range."""
        if not rows or not all(_is_row(row) for row in rows):
            raise ConfigError(
                "load schedule: give rows of three whole numbers, [first batch, last batch, draft tokens]"
            )
        levels = sorted(Level(*row) for row in rows)
        if levels[0].first != 1:
            raise ConfigError(f"load schedule: its first batch size is {levels[0].first}; begin at 1")
        for level in levels:
            if level.last < level.first or not 0 <= level.num_tokens <= 256:
                raise ConfigError(f"load schedule: {list(level)} is no range of batch sizes with 0 to 256 draft tokens")
        for one, two in pairwise(levels):
            if two.first != one.last + 1:
                what = "overlap" if two.first <= one.last else f"leave batch sizes from {one.last + 1} on out"
                raise ConfigError(f"load schedule: {list(one)} and {list(two)} {what}; a level begins where one ends")
        merged: list[Level] = []
        for level in levels:
            if merged and merged[-1].num_tokens == level.num_tokens:
                merged[-1] = merged[-1]._replace(last=level.last)
            else:
                merged.append(level)
        return cls(levels=tuple(merged))

    @property
    def most(self) -> int:
        """The largest K."""
        return max(level.num_tokens for level in self.levels)

    @property
    def falls(self) -> bool:
        """Whether K never rises with the batch."""
        return all(one.num_tokens > two.num_tokens for one, two in pairwise(self.levels))

    def rows(self) -> list[list[int]]:
        """As [first batch, last batch, K]."""
        return [list(level) for level in self.levels]


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, (list, tuple))
        and len(row) == 3
        and all(isinstance(number, int) and not isinstance(number, bool) for number in row)
    )


class Measurement(Settings):
    """What a schedule is computed from.

    ``conditional_acceptance``: chance that draft token i is accepted where all before it were; as many as the longest
    draft has tokens. ``rows``, ``seconds``: the target's forward; ``draft_rows``, ``draft_seconds``: that of a model
    that drafts, one for each draft token (none: drafts take no time). ``overhead``: seconds of a step besides.
    """

    conditional_acceptance: list[float] = Field(min_length=1, max_length=256)
    rows: list[int] = Field(min_length=1)
    seconds: list[float] = Field(min_length=1)
    draft_rows: list[int] = Field(default=[])
    draft_seconds: list[float] = Field(default=[])
    overhead: float = Field(default=0.0, ge=0.0)
    max_batch: int = Field(default=64, ge=1, le=4096)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for rows, seconds, name in (
            (self.rows, self.seconds, "seconds"),
            (self.draft_rows, self.draft_seconds, "draft_seconds"),
        ):
            if len(rows) != len(seconds) or list(rows) != sorted(set(rows)) or any(value <= 0 for value in seconds):
                raise ValueError(f"{name}: give one positive number for each of its rows, which must rise")
        if not all(0.0 <= chance <= 1.0 for chance in self.conditional_acceptance):
            raise ValueError("conditional_acceptance: every entry is a chance, from 0 to 1")
        return self


def expected_tokens(conditional_acceptance: Sequence[float], num_tokens: int) -> float:
    """E(K) for a chain of ``num_tokens``, the bonus or recovered token included."""
    kept: Iterable[float] = accumulate(conditional_acceptance[:num_tokens], mul)
    return 1.0 + sum(kept)


def best_num_tokens(
    conditional_acceptance: Sequence[float],
    cost: Callable[[int], float],
    batch: int,
    draft_cost: Callable[[int], float] | None = None,
    overhead: float = 0.0,
) -> int:
    """The K in 0 .. ``len(conditional_acceptance)`` of most tokens per second; the smaller one of equals.

    ``cost`` and ``draft_cost``: rows to seconds of a target's and of a draft's forward.
    """
    draft = 0.0 if draft_cost is None else draft_cost(batch)

    def speed(num_tokens: int) -> float:
        seconds = cost(batch * (1 + num_tokens)) + num_tokens * draft + overhead
        return expected_tokens(conditional_acceptance, num_tokens) / seconds

    return max(range(len(conditional_acceptance) + 1), key=speed)


def schedule_for(measured: Measurement) -> LoadSchedule:
    """The best K at every batch size up to ``measured.max_batch``."""
    from outrider.target.costs import CostCurve

    cost = CostCurve(measured.rows, measured.seconds)
    draft = CostCurve(measured.draft_rows, measured.draft_seconds) if measured.draft_rows else None
    chances = measured.conditional_acceptance
    batches = range(1, measured.max_batch + 1)
    return LoadSchedule.of(
        [[batch, batch, best_num_tokens(chances, cost, batch, draft, measured.overhead)] for batch in batches]
    )


def read_schedule(path: Path) -> LoadSchedule:
    """A JSON file with the rows of a schedule, or with a ``Measurement``. Raises ConfigError for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--load-schedule {path} cannot be read ({why_unread(error)})") from None
    if isinstance(value, dict):
        return schedule_for(Measurement(**value))
    if not isinstance(value, list):
        raise ConfigError(f"--load-schedule {path}: rows [first batch, last batch, K], or an object of measurements")
    return LoadSchedule.of(value)
