"""What a step costs here, by candidate: short timed runs of the engine, and the cost curves that they correct.

    seconds of a step = draft(K) + pace(rows) * own * t(rows, context) + overhead(K)

t is the target's cost curve. ``pace`` says how much longer forwards within the engine take than the curve's, by
rows, pooled over all candidates; ``own`` is the candidate's factor on top, since drafters leave colder caches behind.
draft and overhead are the means of a few K, straight lines in between. Between batch sizes draft grows as the drafter's
own cost model says, and the overhead with the sequences.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outrider.advise.rig import Rig
from outrider.config import SamplingParams, SpeculationParams
from outrider.target.costs import CostCurve

if TYPE_CHECKING:
    from outrider.engine.step import StepTimes, Work

PLAIN = ""  # the label of steps without a drafter
TOKENS = 40  # of a timed run
PROMPT = 1024  # tokens of its prompt at most: a draft's own attention grows with them
_SPIKES = 0.1  # share of the longest times that are left out of a mean
_SURE = 12.0  # steps that outweigh the pooled pace
Progress = Callable[[float, float], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """One step: seconds of its parts, rows of all sequences, mean context behind them."""

    draft: float
    verify: float
    overhead: float
    rows: int
    context: float


@dataclass(slots=True)
class _Clock:
    """A ``Meter`` that takes down the steps in which ``count`` sequences, and nobody's prompt, were in."""

    count: int
    timings: list[Timing] = field(default_factory=list)

    def step(self, work: Sequence[Work], times: StepTimes) -> None:
        if len(work) == self.count and all(item.decoding for item in work):
            context = sum(len(item.seq.token_ids) - item.num_committed for item in work) / len(work)
            self.timings.append(Timing(times.draft, times.verify, times.overhead, times.num_rows, context))


def mean(values: Sequence[float]) -> float:
    """Without the longest tenth: steps that others interrupted."""
    kept = sorted(values)[: max(1, math.ceil(len(values) * (1.0 - _SPIKES)))]
    return statistics.fmean(kept)


@dataclass(frozen=True, slots=True)
class Points:
    """Measured seconds at some K; straight lines in between, the ends go on as they are."""

    ks: Sequence[int]
    seconds: Sequence[float]

    def __call__(self, k: int) -> float:
        """Seconds at ``k``."""
        if k <= self.ks[0] or len(self.ks) == 1:
            return self.seconds[0]
        for at in range(1, len(self.ks)):
            if k <= self.ks[at]:
                share = (k - self.ks[at - 1]) / (self.ks[at] - self.ks[at - 1])
                return self.seconds[at - 1] + share * (self.seconds[at] - self.seconds[at - 1])
        return self.seconds[-1]


@dataclass(frozen=True, slots=True)
class Pace:
    """Factors of the target's curve by rows: at those measured, in between by the logarithm of the rows."""

    rows: Sequence[int] = (1,)
    factors: Sequence[float] = (1.0,)

    def __call__(self, rows: float) -> float:
        """The factor for so many rows."""
        if rows <= self.rows[0]:
            return self.factors[0]
        for at in range(1, len(self.rows)):
            if rows <= self.rows[at]:
                low, high = math.log(self.rows[at - 1]), math.log(self.rows[at])
                share = (math.log(rows) - low) / (high - low)
                return self.factors[at - 1] + share * (self.factors[at] - self.factors[at - 1])
        return self.factors[-1]


@dataclass(frozen=True, slots=True)
class Own:
    """A candidate's part: factor of its forwards, seconds of drafting and of everything else a step, by K."""

    factor: float
    draft: Points
    overhead: Points


@dataclass(slots=True)
class Costs:
    """Of one machine, target and set of candidates. ``growth(label, batch, k)``: seconds of drafting for a batch over
    those for one sequence."""

    curve: CostCurve
    pace: Pace
    own: dict[str, Own]
    growth: Callable[[str, int, int], float] = lambda label, batch, k: float(batch)
    prefill_token: float = 0.0  # seconds of a prompt token

    def verify(self, label: str, rows: float, context: float, batch: int = 1) -> float:
        """Seconds of the target's forward with ``rows`` rows in all, ``batch`` sequences of ``context`` tokens."""
        behind: Any = self.curve.behind(context, batch)
        seconds: float = behind(rows)
        return seconds * self.pace(rows) * self.own[label].factor

    def beside(self, label: str, k: int, batch: int = 1) -> float:
        """Seconds of drafting and overhead of a step."""
        own = self.own[label]
        draft = own.draft(k) * (1.0 if batch == 1 or not k else self.growth(label, batch, k))
        return draft + own.overhead(k) * batch


def measure(
    rig: Rig, prompts: Sequence[Sequence[int]], seconds: float, temperature: float, progress: Progress
) -> Costs:
    """Time every candidate at a few K in turns, one prompt after the other, for about ``seconds``."""
    jobs = [(PLAIN, 0), *_jobs(rig)]
    timings: dict[tuple[str, int], list[Timing]] = {job: [] for job in jobs}
    prefill: list[float] = []
    total, done, spent = max(2, len(prompts)), 0, 0.0
    while done < total and (done < 2 or spent < seconds):
        tokens = list(prompts[done % len(prompts)])[-PROMPT:]
        shift = done * 5 % len(jobs)
        for number, job in enumerate([*jobs[shift:], *jobs[:shift]]):
            timed, took, first = _timed(rig, job, tokens, temperature)
            timings[job] += timed
            spent += took
            if job == (PLAIN, 0):
                prefill.append(first / len(tokens))
            progress(done * len(jobs) + number + 1, total * len(jobs))
        done += 1
    curve = rig.engine.planner.curve
    found = fit(curve, timings)
    found.prefill_token = statistics.median(prefill)
    found.growth = lambda label, batch, k: growth(rig, label, batch, k)
    return found


def growth(rig: Rig, label: str, batch: int, k: int) -> float:
    """As the drafter's own cost model says; one that takes next to no time grows with the sequences."""
    drafter = rig.drafters[label]
    one = drafter.seconds(1, k)
    return drafter.seconds(batch, k) / one if one else float(batch)


def _jobs(rig: Rig) -> Iterator[tuple[str, int]]:
    for each in rig.candidates:
        budgets = rig.usable_budgets(each)
        for k in sorted({budgets[0], budgets[len(budgets) // 2], budgets[-1]}):
            yield each.label, k


def speculation(label: str, k: int) -> SpeculationParams:
    """The request's switch for a candidate and K; ``PLAIN``: none."""
    if label == PLAIN or k == 0:
        return SpeculationParams(enabled=False)
    return SpeculationParams(method=label, num_speculative_tokens=k)


def _timed(rig: Rig, job: tuple[str, int], tokens: list[int], temperature: float) -> tuple[list[Timing], float, float]:
    """Steps of one request, its seconds, and those of its prompt."""
    clock = _Clock(1)
    params = SamplingParams(
        temperature=temperature, max_tokens=TOKENS, ignore_eos=True, seed=0, speculation=speculation(*job)
    )
    rig.llm.meter(clock)
    try:
        prompt = {"prompt_token_ids": tokens, "cache_salt": f"costs/{job[0]}"}
        (answer,) = rig.llm.generate([prompt], params, use_tqdm=False)
    finally:
        rig.llm.meter(None)
    stats = answer.stats
    return clock.timings, stats.prefill_seconds + stats.decode_seconds, stats.prefill_seconds


def fit(curve: CostCurve, timings: Mapping[tuple[str, int], Sequence[Timing]]) -> Costs:
    """The cost model of one sequence's steps, by (label, K)."""
    ratios: dict[int, list[float]] = {}
    by_label: dict[str, list[tuple[Timing, float]]] = {}
    for (label, _), steps in timings.items():
        for each in steps:
            ratio = each.verify / curve.behind(each.context, 1)(each.rows)
            ratios.setdefault(each.rows, []).append(ratio)
            by_label.setdefault(label, []).append((each, ratio))
    seen = sorted(rows for rows, found in ratios.items() if len(found) >= 8 or rows == 1) or sorted(ratios)
    pace = Pace(seen, [mean(ratios[rows]) for rows in seen])
    own = {}
    for label in {label for label, _ in timings}:
        jobs = {k: steps for (name, k), steps in timings.items() if name == label and steps}
        if not jobs:
            continue
        factors = [ratio / pace(each.rows) for each, ratio in by_label[label]]
        weight = len(factors) / (len(factors) + _SURE)
        ks = sorted(jobs)
        own[label] = Own(
            1.0 + weight * (mean(factors) - 1.0),
            Points(ks, [mean([each.draft for each in jobs[k]]) for k in ks]),
            Points(ks, [mean([each.overhead for each in jobs[k]]) for k in ks]),
        )
    return Costs(curve, pace, own)
