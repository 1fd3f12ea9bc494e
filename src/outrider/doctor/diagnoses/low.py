"""Few drafts are accepted, and metrics alone do not say why."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking, percent

_NAME = "low_acceptance"
_FIRST = 0.3  # of first draft tokens


def _check(case: Case) -> Iterable[Finding]:
    lacking = ""
    for figures in case.drafting:
        if not figures.trained:
            lacking = f"a drafter with weights ({figures.source} drafts with {figures.method})"
            continue
        first = figures.first_acceptance
        if first is None:
            lacking = f"accepted tokens by position ({figures.source}: {figures.engine} does not count them)"
            continue
        case.enough(figures)
        if first < _FIRST:
            origin = figures.origin("accepted_per_position")
            evidence = [Evidence("first draft tokens accepted", percent(first), f"at least {percent(_FIRST)}", origin)]
            fault = "the draft and the target seldom agree, even on the first token"
            yield finding(_NAME, fault, Certainty.POSSIBLE, evidence, 1.0 - first)
    if lacking:
        raise Lacking(lacking)


DIAGNOSIS = Diagnosis(
    _NAME,
    "few first tokens are accepted",
    "acceptance at the first position, of drafters with weights",
    "give --target and --draft or --head: template, layers, vocabulary and number formats are compared then; compare "
    "with another draft by `outrider bench`",
    _check,
    ("k_too_long", "load_too_high"),
)
