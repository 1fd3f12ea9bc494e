"""Arithmetic of the comparisons: rates, ratios, intervals, timing of forwards. No model is touched here."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from outrider.bench.data import Prompt
from outrider.bench.runner import Row
from outrider.outputs import RequestStats

NUM_RESAMPLES = 2000
Z95 = 1.959963984540054


@contextmanager
def all_threads() -> Iterator[None]:
    """torch with as many threads as Outrider's kernels, which leave it one: for the systems that compute in torch."""
    import torch

    from outrider import native

    own = torch.get_num_threads()
    torch.set_num_threads(native.threads())
    try:
        yield
    finally:
        torch.set_num_threads(own)


@dataclass(slots=True)
class ForwardClock:
    """When the forwards of one model began and ended (``time.perf_counter``), and how many rows they had."""

    begun: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def begin(self, module: object, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """A forward begins; usable as a torch forward pre-hook with keyword arguments."""
        ids = options["input_ids"] if "input_ids" in options else arguments[0]
        self.rows.append(int(ids.shape[-1]))
        self.begun.append(time.perf_counter())

    def end(self, *_: object) -> None:
        """A forward has ended; usable as a torch forward hook."""
        self.ended.append(time.perf_counter())

    def clear(self) -> None:
        """Forget all forwards."""
        self.begun.clear()
        self.ended.clear()
        self.rows.clear()

    def durations(self) -> list[float]:
        """Seconds of each forward."""
        return [end - begin for begin, end in zip(self.begun, self.ended, strict=True)]


def call_stats(
    began: float,
    ended: float,
    num_prompt: int,
    num_tokens: int,
    target: ForwardClock,
    draft: ForwardClock | None = None,
) -> RequestStats:
    """Times and counts of one ``generate`` call, in the terms of ``RequestStats``.

    transformers drafts before it has computed the prompt, and verifies that draft in the target's first forward, beside
    ``num_prompt`` prompt rows. Prefill is everything up to the end of the target's first forward, but for the drafting
    between the draft's first forward and it, and the share of it that the draft's rows have. All other time counts as
    decoding: forwards of the target (verify), forwards of the draft (draft), and what is left (overhead).
    """
    durations = target.durations()
    drafted = draft.durations() if draft is not None else []
    verified_first = durations[0] * (1 - num_prompt / target.rows[0])
    prefill = target.ended[0] - began - verified_first
    if draft is not None and drafted:
        prefill = draft.ended[0] - began + durations[0] - verified_first
    verify, drafting = sum(durations[1:]) + verified_first, sum(drafted[1:])
    num_first = int(target.rows[0] == num_prompt)  # else the first forward is a step with a draft
    return RequestStats(
        num_first_tokens=num_first,
        num_steps=len(durations) - num_first,
        num_committed_tokens=num_tokens - num_first,
        prefill_seconds=prefill,
        verify_seconds=verify,
        draft_seconds=drafting,
        overhead_seconds=ended - began - prefill - verify - drafting,
        time_to_first_token=target.ended[0] - began,
    )


def charge_rest(stats: RequestStats, seconds: float) -> RequestStats:
    """``stats`` of a request that ran alone, with every second of the call (``seconds``) that is not prefill charged
    to decoding."""
    stats.overhead_seconds = seconds - stats.prefill_seconds - stats.draft_seconds - stats.verify_seconds
    return stats


def decode_rate(rows: Sequence[Row]) -> float | None:
    """Tokens after the first / seconds after prefill, pooled over ``rows``."""
    seconds = sum(row.stats.decode_seconds for row in rows)
    return sum(len(row.token_ids) - 1 for row in rows) / seconds if seconds > 0 else None


def call_rate(rows: Sequence[Row]) -> float | None:
    """All tokens / all seconds, prefill included, pooled over ``rows``."""
    seconds = sum(row.stats.decode_seconds + row.stats.prefill_seconds for row in rows)
    return sum(len(row.token_ids) for row in rows) / seconds if seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times the decoding rate of one system another one has.

    ``pooled``: of the pooled rates, with the 95 % interval of a bootstrap over answers in pairs (None for fewer than
    two); ``median``: of the ratios of single answers; ``call``: pooled, prefill included; ``lowest``: of an answer.
    """

    pooled: float
    low: float | None
    high: float | None
    median: float
    lowest: float
    call: float


def ratio(mine: Sequence[Row], theirs: Sequence[Row]) -> Ratio | None:
    """The ratio of two systems over the answers that both gave to the same prompts, in the same order.

    None when there is no answer of more than one token on both sides.
    """
    pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if min(len(a.token_ids), len(b.token_ids)) > 1]
    if not pairs:
        return None
    table = np.array([[*_work(a), *_work(b)] for a, b in pairs])  # [answers, 4]: tokens, seconds, tokens, seconds
    singles = (table[:, 0] / table[:, 1]) / (table[:, 2] / table[:, 3])
    tokens, seconds, their_tokens, their_seconds = table.sum(axis=0)
    low, high = bootstrap(lambda t: (t[0] / t[1]) / (t[2] / t[3]), table)
    call_a, call_b = call_rate([a for a, _ in pairs]), call_rate([b for _, b in pairs])
    assert call_a is not None
    assert call_b is not None
    pooled = float((tokens / seconds) / (their_tokens / their_seconds))
    return Ratio(pooled, low, high, float(np.median(singles)), float(singles.min()), call_a / call_b)


def _work(row: Row) -> tuple[float, float]:
    return len(row.token_ids) - 1, row.stats.decode_seconds


def bootstrap(
    statistic: Callable[[np.ndarray], np.ndarray], table: np.ndarray, seed: int = 0
) -> tuple[float | None, float | None]:
    """95 % interval of ``statistic`` of the column sums of ``table`` [units, columns] under resampling of units.

    ``statistic`` takes sums [columns, resamples]. (None, None) for fewer than two units.
    """
    if len(table) < 2:
        return None, None
    picks = np.random.default_rng(seed).integers(len(table), size=(NUM_RESAMPLES, len(table)))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = statistic(table[picks].sum(axis=1).T)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None, None
    low, high = np.quantile(finite, [0.025, 0.975])
    return float(low), float(high)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion (doi:10.1080/01621459.1927.10502953); (0, 1) for no trial."""
    if trials == 0:
        return 0.0, 1.0
    rate, square = successes / trials, Z95 * Z95 / trials
    centre = (rate + square / 2) / (1 + square)
    half = Z95 * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def mixed(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """``count`` prompts, one of each task in turn; fewer when there are no more."""
    tasks: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    depth = max((len(rows) for rows in tasks.values()), default=0)
    turns = [rows[index] for index in range(depth) for rows in tasks.values() if index < len(rows)]
    return turns[:count]


def cut_at_end(tokens: Sequence[int], end_ids: frozenset[int]) -> list[int]:
    """``tokens`` up to and with the first of ``end_ids``: what a padded batch row really answered."""
    for index, token in enumerate(tokens):
        if token in end_ids:
            return list(tokens[: index + 1])
    return list(tokens)


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


class RowForward(Protocol):
    """A forward of n rows over a fixed context; ``reset`` takes the rows out of the cache again, untimed."""

    def run(self, num_rows: int) -> None:
        """One forward."""
        ...

    def reset(self) -> None:
        """Back to the context alone."""
        ...


def row_curves(
    forwards: Mapping[str, RowForward], rows: Sequence[int], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Median seconds of forwards of each of ``rows``, in alternating rounds after one that does not count."""
    taken: dict[tuple[str, int], list[float]] = {}
    labels = list(forwards)
    for number in range(rounds + 1):
        shift = number % len(labels)
        for num_rows in rows:
            for label in [*labels[shift:], *labels[:shift]]:
                begin = clock()
                forwards[label].run(num_rows)
                seconds = clock() - begin
                forwards[label].reset()
                if number:
                    taken.setdefault((label, num_rows), []).append(seconds)
    return {label: [statistics.median(taken[label, num_rows]) for num_rows in rows] for label in labels}
