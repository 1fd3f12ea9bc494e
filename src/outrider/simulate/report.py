"""From what happened to what is asked: throughput, latencies, fill, memory, money."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.simulate.costs import CostModel
from outrider.simulate.loop import BLOCK_SIZE, Answer, Record, Settings

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Result:
    """One simulated run in numbers. Times in seconds but for TPOT and the gap between steps, in milliseconds.

    ``tpot_ms``: of a request, the time after its first token per token after the first. ``mean_acceptance_length``:
    committed tokens after the first / steps after prefill. ``fill``: mean running sequences / ``max_num_seqs``, over
    the time in which there was work. ``cost``: of a million output tokens, None without a price.
    """

    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    seconds: float
    busy: float  # share of the time in which there was work
    throughput: float  # output tokens a second
    ttft: dict[str, float]
    tpot_ms: dict[str, float]
    latency: dict[str, float]
    mean_acceptance_length: float
    acceptance_rate: float | None  # accepted / verified draft tokens
    rows_per_step: float
    running: float
    fill: float
    kv_share: float  # of the cache, mean
    kv_peak: float
    kv_gb: float  # at the peak
    preemptions: int
    forward_share: float  # of the busy time
    draft_share: float
    cost: float | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        from dataclasses import asdict

        return asdict(self)


def result_of(record: Record, settings: Settings, costs: CostModel) -> Result:
    """The numbers of a run that has at least one answer."""
    answers, busy = record.answers, max(record.busy, 1e-12)
    output = sum(answer.tokens for answer in answers)
    steps = sum(answer.steps for answer in answers)
    drafted = sum(answer.drafted for answer in answers)
    seconds = record.seconds
    throughput = output / seconds
    return Result(
        requests=len(answers),
        prompt_tokens=sum(answer.prompt for answer in answers),
        cached_tokens=sum(answer.cached for answer in answers),
        output_tokens=output,
        seconds=seconds,
        busy=record.busy / seconds,
        throughput=throughput,
        ttft=_percentiles(answers, lambda answer: answer.first - answer.arrival),
        tpot_ms=_percentiles([a for a in answers if a.tokens > 1], tpot_ms),
        latency=_percentiles(answers, lambda answer: answer.last - answer.arrival),
        mean_acceptance_length=(output - len(answers)) / steps if steps else 1.0,
        acceptance_rate=sum(answer.accepted for answer in answers) / drafted if drafted else None,
        rows_per_step=record.rows / record.steps,
        running=record.running / busy,
        fill=record.running / busy / settings.max_num_seqs,
        kv_share=record.kv_blocks / busy / record.num_blocks,
        kv_peak=record.most_blocks / record.num_blocks,
        kv_gb=record.most_blocks * BLOCK_SIZE * costs.kv_bytes / 1e9,
        preemptions=record.preemptions,
        forward_share=record.forward / busy,
        draft_share=record.draft / busy,
        cost=costs.price / (throughput * 3600.0) * 1e6 if costs.price else None,
    )


def tpot_ms(answer: Answer) -> float:
    """Milliseconds per token after the first."""
    return (answer.last - answer.first) / (answer.tokens - 1) * 1000.0


def _percentiles(answers: Sequence[Answer], value: Callable[[Answer], float]) -> dict[str, float]:
    if not answers:
        return {f"p{at}": 0.0 for at in PERCENTILES}
    found = np.percentile([value(answer) for answer in answers], PERCENTILES)
    return {f"p{at}": float(each) for at, each in zip(PERCENTILES, found, strict=True)}
