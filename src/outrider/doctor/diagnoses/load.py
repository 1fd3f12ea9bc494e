"""So many requests run that the rows of drafts cost more than they bring."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, need

_NAME = "load_too_high"
_BELOW = 0.97  # of plain decoding's speed
_CROWD = 4  # requests from which on it is the load, and not the drafter


def gain_at(running: float, draft_length: float, tokens: float, saturation_rows: float) -> float:
    """Speed over plain decoding's: tokens a step, by the time of the two forwards. A forward takes one unit up to
    ``saturation_rows`` rows (it reads its weights), and grows with its rows from there on (it computes)."""
    plain = max(1.0, running / saturation_rows)
    return tokens * plain / max(1.0, running * (1.0 + draft_length) / saturation_rows)


def _check(case: Case) -> Iterable[Finding]:
    figures = case.metrics
    running = need(figures.num_running, f"running requests ({figures.engine} does not say)")
    waiting = figures.num_waiting or 0.0
    load = [Evidence("running / waiting", f"{running:.0f} / {waiting:.0f}", source=figures.origin("num_running"))]
    if figures.going_rate is not None:
        if figures.going_rate < _BELOW and running >= _CROWD:
            rate = Evidence("tokens per second over plain", f"{figures.going_rate:.2f}", "1", "going_rate")
            fault = f"with {running:.0f} requests running, speculation is slower than plain decoding"
            yield finding(_NAME, fault, Certainty.LIKELY, [rate, *load], 1.0 - figures.going_rate)
        return
    case.enough(figures)
    tokens = need(figures.acceptance_length, f"the mean acceptance length ({figures.engine} does not say)")
    length = need(figures.draft_length, f"drafts, or K ({figures.engine} does not say)")
    rows = case.limits.saturation_rows
    gain = gain_at(running, length, tokens, rows)
    if gain >= _BELOW or running < _CROWD or not length or tokens < 1.0:  # under 1: nothing was drafted
        return
    evidence = [
        *load,
        Evidence("rows of a step", f"{running * (1 + length):.0f}", f"{rows}, assumed: --saturation-rows"),
        Evidence("tokens per step", f"{tokens:.2f}", f"{tokens / gain:.2f} pay", figures.origin("num_accepted_tokens")),
        Evidence("speed over plain decoding, reckoned", f"{gain:.2f}", "1"),
    ]
    fault = f"with {running:.0f} requests of {1 + length:.1f} rows the target computes more than the drafts save"
    yield finding(_NAME, fault, Certainty.LIKELY, evidence, 1.0 - gain)


DIAGNOSIS = Diagnosis(
    _NAME,
    "the load is too high for speculation",
    "our own server's `going_rate`; elsewhere tokens per step against the rows of a step, beyond the rows that a "
    "forward takes for nothing",
    "draft less under load: num_speculative_tokens_per_batch_size in vLLM, draft_len_schedule in TensorRT-LLM, "
    "--speculative-adaptive in SGLang; here leave K to the planner; or add replicas",
    _check,
)
