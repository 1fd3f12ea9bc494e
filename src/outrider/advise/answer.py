"""The answer: which candidate, how many draft tokens at which load, and why, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.advise.candidates import Candidate
from outrider.advise.memory import Memory
from outrider.advise.predict import Prediction, Predictor
from outrider.advise.prove import Proof

LEAST = 1.02  # a smaller speed-up is not worth a drafter
LOADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user set. ``memory``: bytes, None for no limit; ``tpot_ms``: milliseconds a token, None for none."""

    concurrency: Sequence[int] = (1,)
    memory: int | None = None
    tpot_ms: float | None = None


@dataclass(slots=True)
class Ranked:
    """A candidate's place. ``best``: by batch, its best K there, of ``budgets``; ``factor``: measured over
    predicted, 1 unproven; ``out``: why it cannot be chosen, empty where it can."""

    candidate: Candidate
    best: dict[int, Prediction]
    budgets: Sequence[int] = ()
    factor: float = 1.0
    out: str = ""

    def speedup(self, batch: int) -> float:
        """Expected, corrected by the proof."""
        return self.best[batch].speedup * self.factor

    def interval(self, batch: int) -> tuple[float, float]:
        """The 95 % interval of ``speedup``, corrected likewise."""
        return self.best[batch].low * self.factor, self.best[batch].high * self.factor

    @property
    def value(self) -> float:
        """Geometric mean over the loads; where it does not pay it is switched off, which is 1."""
        logs = [math.log(max(1.0, self.speedup(batch))) for batch in self.best]
        return math.exp(sum(logs) / len(logs))


@dataclass(frozen=True, slots=True)
class Recommendation:
    """``method`` None: serve without speculation. ``load_schedule``: rows [first batch, last batch, K]."""

    label: str
    method: str | None
    num_speculative_tokens: int
    draft: str | None
    head: str | None
    load_schedule: list[list[int]] = field(default_factory=list)
    config: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `outrider export ENGINE --advice` reads them."""
        return {
            "label": self.label,
            "method": self.method,
            "num_speculative_tokens": self.num_speculative_tokens,
            "draft": self.draft,
            "head": self.head,
            "load_schedule": self.load_schedule,
            "speculative_config": dict(self.config),
        }


def rank(
    candidates: Sequence[Candidate],
    predictions: Sequence[Prediction],
    proofs: Sequence[Proof],
    limits: Limits,
    memory: Memory,
) -> list[Ranked]:
    """All candidates, the best first; those that break a limit last."""
    factors = {proof.label: proof.measured / proof.predicted for proof in proofs}
    out = []
    for candidate in candidates:
        best: dict[int, Prediction] = {}
        for each in predictions:
            if each.label != candidate.label or each.batch not in limits.concurrency:
                continue
            if each.batch not in best or each.speedup > best[each.batch].speedup:
                best[each.batch] = each
        if best:
            budgets = sorted({each.num_speculative_tokens for each in predictions if each.label == candidate.label})
            ranked = Ranked(candidate, best, budgets, factors.get(candidate.label, 1.0))
            ranked.out = _why_not(ranked, limits, memory)
            out.append(ranked)
    return sorted(out, key=lambda each: (bool(each.out), -each.value))


def _why_not(ranked: Ranked, limits: Limits, memory: Memory) -> str:
    label, most = ranked.candidate.label, max(limits.concurrency)
    if limits.memory is not None and memory.needed(label, most) > limits.memory:
        holds = memory.most(label, limits.memory)
        return (
            f"needs {memory.needed(label, most) / 1e9:.2f} GB for {most} sequences, {limits.memory / 1e9:.2f} GB hold "
            f"{holds}"
        )
    least = min(limits.concurrency)
    if limits.tpot_ms is not None and ranked.best[least].tpot_ms > limits.tpot_ms:
        slow = ranked.best[least].tpot_ms
        return f"{slow:.1f} ms a token at {least} at a time, over the target of {limits.tpot_ms:g} ms"
    return ""


def recommend(ranked: Sequence[Ranked], predictor: Predictor, limits: Limits) -> Recommendation:
    """The first that pays, and its K by load."""
    first = next((each for each in ranked if not each.out and each.value >= LEAST), None)
    if first is None:
        return Recommendation("plain", None, 0, None, None)
    return deploy(first, predictor, limits)


def deploy(ranked: Ranked, predictor: Predictor, limits: Limits) -> Recommendation:
    """One candidate, and its K by load."""
    candidate = ranked.candidate
    schedule = load_schedule(ranked, predictor, limits.concurrency)
    lowest = min(limits.concurrency)
    tokens = next((k for low, high, k in schedule if low <= lowest <= high), 0)
    tokens = tokens or max(k for _, _, k in schedule) or ranked.best[lowest].num_speculative_tokens
    config = candidate.config.model_dump(exclude_unset=True) | {"num_speculative_tokens": tokens}
    return Recommendation(candidate.label, candidate.method, tokens, candidate.draft, candidate.head, schedule, config)


def load_schedule(ranked: Ranked, predictor: Predictor, concurrency: Sequence[int]) -> list[list[int]]:
    """[first batch, last batch, K] from 1 on; the last row ends at the highest load that was asked for."""
    loads = sorted({*(load for load in LOADS if load <= max(concurrency)), *concurrency})
    rows: list[list[int]] = []
    for at, load in enumerate(loads):
        options = [(predictor.predict(ranked.candidate, k, load).speedup * ranked.factor, k) for k in ranked.budgets]
        speedup, k = max(options, key=lambda each: (each[0], -each[1]))
        k = k if speedup >= LEAST else 0
        last = loads[at + 1] - 1 if at + 1 < len(loads) else load
        if rows and rows[-1][2] == k:
            rows[-1][1] = last
        else:
            rows.append([load if rows else 1, last, k])
    return rows


def shared_prefixes(prompts: Iterable[Sequence[int]], block: int = 16) -> float:
    """Share of the prompts' tokens that stand in full blocks of a beginning that an earlier prompt had."""
    seen: set[tuple[int, ...]] = set()
    shared = total = 0
    for prompt in prompts:
        total += len(prompt)
        for end in range(block, len(prompt) + 1, block):
            start = tuple(prompt[:end])
            shared += block if start in seen else 0
            seen.add(start)
    return shared / max(1, total)
