"""A draft that costs as much as the target, so that no acceptance pays for it."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.figures import Figures
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking, percent

_NAME = "draft_slow"
_COST = 0.5  # of a step of the target, for one token
_SIZE = 0.4  # of the target's weights


def _check(case: Case) -> Iterable[Finding]:
    looked, lacking = False, "metrics with draft times, or --target and --draft"
    if case.models is not None and case.models.draft is not None:
        looked = True
        yield from _sizes(case)
    for figures in case.figures[1:] or case.figures:
        if figures.token_cost is None:
            lacking = f"times of draft and target ({figures.engine} does not export them), or --target and --draft"
            continue
        looked = True
        yield from _timed(case.enough(figures))
    if not looked:
        raise Lacking(lacking)


def _timed(figures: Figures) -> Iterable[Finding]:
    cost, tokens = figures.token_cost, figures.acceptance_length
    if cost is None or cost < _COST:
        return
    origin = figures.origin("draft_seconds", "num_draft_tokens", "verify_seconds", "num_steps")
    evidence = [
        Evidence("time to draft a token", percent(cost), f"below {percent(_COST)} of the target's step", origin)
    ]
    if tokens is not None:
        evidence.append(Evidence("tokens per step with a draft", f"{tokens:.2f}", source=figures.origin("num_drafts")))
    method = f" ({figures.method})" if figures.method else ""
    fault = f"drafting a token takes {percent(cost)} of a step of the target{method}"
    yield finding(_NAME, fault, Certainty.LIKELY, evidence, cost / 2)


def _sizes(case: Case) -> Iterable[Finding]:
    assert case.models is not None
    ours, theirs = case.models.target.num_weights, case.draft.num_weights
    if theirs < _SIZE * ours:
        return
    evidence = [
        Evidence("weights of the draft", f"{theirs / 1e6:,.1f} M", f"below {percent(_SIZE)} of the target's"),
        Evidence("weights of the target", f"{ours / 1e6:,.1f} M", source="shapes in config.json, used for a token"),
    ]
    fault = f"the draft has {percent(theirs / ours)} of the target's weights: it is nearly as slow"
    yield finding(_NAME, fault, Certainty.LIKELY, evidence, theirs / ours)


DIAGNOSIS = Diagnosis(
    _NAME,
    "the draft is as slow as the target",
    "our own server's draft and verify seconds; the shapes of both models",
    "take a draft of a tenth of the target's size or less, a head, or a lookup method; check that the draft runs on "
    "the same device, with graphs and without quantisation that is slow at batch size 1",
    _check,
    ("k_too_long", "load_too_high"),
)
