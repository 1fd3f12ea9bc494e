"""Expected tokens and time of every candidate, K and batch size, from the screen's texts and the measured costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from outrider.advise.candidates import Candidate
from outrider.advise.costs import PLAIN, Costs
from outrider.advise.memory import Memory
from outrider.advise.rig import Rig
from outrider.advise.screen import Screen, Text
from outrider.advise.walks import Tally, pooled
from outrider.errors import ConfigError
from outrider.theory.speedup import break_even

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Prediction:
    """One candidate with K draft tokens, ``batch`` sequences at a time. ``speedup``: tokens per second over plain
    decoding's at the same batch, prefill apart, with the 95 % interval of a bootstrap over texts; ``by_task`` likewise;
    ``break_even``: conditional acceptance, equal at all positions, at which it is as fast as plain decoding, None where
    none is. ``memory_bytes``: weights and caches."""

    label: str
    num_speculative_tokens: int
    batch: int
    tokens_per_step: float
    rows_per_step: float
    step_ms: float
    draft_ms: float
    tpot_ms: float
    tokens_per_second: float
    speedup: float
    low: float
    high: float
    acceptance_rate: float | None
    conditional: list[float | None]
    break_even: float | None
    memory_bytes: int
    by_task: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


class Predictor:
    """Asks the texts and the costs. Walks are made once."""

    def __init__(self, rig: Rig, screen: Screen, costs: Costs, memory: Memory) -> None:
        self._rig, self._screen, self._costs, self._memory = rig, screen, costs, memory
        self._tallies: dict[tuple[str, int], list[Tally]] = {}

    def tallies(self, candidate: Candidate | None, k: int) -> list[Tally]:
        """The walk over each text; None: plain decoding."""
        label = PLAIN if candidate is None else candidate.label
        if (label, k) not in self._tallies:
            chain = candidate is not None and not candidate.is_tree
            limit = self._screen.plan.max_tokens
            self._tallies[label, k] = [text.tally(label or None, k, limit, chain=chain) for text in self._screen.texts]
        return self._tallies[label, k]

    def seconds(self, candidate: Candidate | None, k: int, tally: Tally, batch: int = 1) -> float:
        """Of the steps of ``tally``, its share of steps that ``batch`` sequences take together."""
        label = PLAIN if candidate is None else candidate.label
        verify = (
            sum(n * self._costs.verify(label, rows, tally.context) for rows, n in tally.rows.items())
            if batch == 1
            else tally.num_steps * self._costs.verify(label, batch * tally.rows_per_step, tally.context, batch) / batch
        )
        return verify + tally.num_steps * self._costs.beside(label, k, batch) / batch

    def predict(self, candidate: Candidate, k: int, batch: int = 1) -> Prediction:
        """One cell of the grid."""
        mine, plain = self.tallies(candidate, k), self.tallies(None, 0)
        times = [self.seconds(candidate, k, tally, batch) for tally in mine]
        base = [self.seconds(None, 0, tally, batch) for tally in plain]
        total = pooled(mine)
        step = sum(times) / total.num_steps * batch
        low, high = interval(base, times)
        drafting = self._costs.own[candidate.label].draft(k)
        return Prediction(
            label=candidate.label,
            num_speculative_tokens=k,
            batch=batch,
            tokens_per_step=total.tokens_per_step,
            rows_per_step=total.rows_per_step,
            step_ms=1e3 * step,
            draft_ms=1e3 * drafting * (self._costs.growth(candidate.label, batch, k) if batch > 1 else 1.0),
            tpot_ms=1e3 * step / total.tokens_per_step,
            tokens_per_second=batch * total.tokens_per_step / step,
            speedup=sum(base) / sum(times),
            low=low,
            high=high,
            acceptance_rate=total.acceptance_rate,
            conditional=total.conditional,
            break_even=self._break_even(candidate, k, batch, total),
            memory_bytes=self._memory.needed(candidate.label, batch),
            by_task=self._by_task(base, times),
        )

    def grid(self, batches: Iterable[int]) -> list[Prediction]:
        """All candidates, their K, and ``batches``."""
        return [
            self.predict(candidate, k, batch)
            for batch in batches
            for candidate in self._rig.candidates
            if candidate.label in self._costs.own
            for k in self._rig.usable_budgets(candidate)
        ]

    def plain_tpot_ms(self, batch: int) -> float:
        """Milliseconds a token of plain decoding."""
        total = pooled(self.tallies(None, 0))
        return 1e3 * self.seconds(None, 0, total, batch) * batch / total.num_tokens

    def _by_task(self, base: Sequence[float], times: Sequence[float]) -> dict[str, float]:
        sums: dict[str, list[float]] = {}
        for text, before, after in zip(self._screen.texts, base, times, strict=True):
            task = sums.setdefault(text.task, [0.0, 0.0])
            task[0] += before
            task[1] += after
        return {task: before / after for task, (before, after) in sums.items()}

    def _break_even(self, candidate: Candidate, k: int, batch: int, total: Tally) -> float | None:
        """Of a chain that always has K tokens; None for trees too, whose nodes are no positions."""
        if candidate.is_tree:
            return None
        label, context = candidate.label, total.context
        plain = self._costs.verify(PLAIN, batch, context, batch) + self._costs.beside(PLAIN, 0, batch)
        more = self._costs.verify(label, batch * (k + 1), context, batch) + self._costs.beside(label, k, batch)
        try:
            return break_even(k, max(0.0, more / plain - 1.0) / k)
        except ConfigError:
            return None


def interval(base: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the ratio of sums under resampling of texts."""
    table = np.array([base, times])
    picks = np.random.default_rng(0).integers(table.shape[1], size=(_RESAMPLES, table.shape[1]))
    sums = table[:, picks].sum(axis=2)
    low, high = np.quantile(sums[0] / sums[1], [0.025, 0.975])
    return float(low), float(high)


def subset(predictor: Predictor, candidate: Candidate, k: int, texts: Sequence[Text], wanted: Sequence[bool]) -> float:
    """Speed-up over the texts that are ``wanted``, one sequence at a time."""
    mine, plain = predictor.tallies(candidate, k), predictor.tallies(None, 0)
    after = sum(predictor.seconds(candidate, k, each) for each, use in zip(mine, wanted, strict=True) if use)
    before = sum(predictor.seconds(None, 0, each) for each, use in zip(plain, wanted, strict=True) if use)
    return before / after
