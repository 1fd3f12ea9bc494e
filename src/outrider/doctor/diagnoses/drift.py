"""Acceptance has fallen over time: the prompts have changed, or the target."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.figures import Figures
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking, percent
from outrider.doctor.records import Record, Records
from outrider.doctor.statistics import z_of_fall

_NAME = "drift"
_DROP = 0.25  # of the earlier acceptance, as the server's own monitor has it
_SURE = 4.0  # standard errors


def _check(case: Case) -> Iterable[Finding]:
    looked = False
    for figures in case.figures[1:] or case.figures:
        if figures.drift is not None:
            looked = True
            if figures.drift > 1.0:
                yield _alarm(figures)
                continue
        if figures.before is not None and figures.before.num_draft_tokens:
            looked = True
            yield from _fallen(figures, figures.before)
    if case.records is not None and len(case.records.drafted) >= 20 and _many(case):
        looked = True
        yield from _recorded(case.records)
    if not looked:
        raise Lacking("two scrapes (--window SECONDS, or two files), or at least 20 records with enough drafts")


def _many(case: Case) -> bool:
    """Both halves of the records hold enough drafts for a rate."""
    rows = case.records.drafted if case.records is not None else []
    halves = (rows[: len(rows) // 2], rows[len(rows) // 2 :])
    return all(sum(row.num_drafts for row in half) >= case.limits.min_drafts for half in halves)


def _alarm(figures: Figures) -> Finding:
    assert figures.drift is not None
    rate = figures.acceptance_rate
    evidence = [Evidence("sum of the drift monitor", f"{figures.drift:.2f}", "1", figures.origin("drift"))]
    if rate is not None:
        origin = figures.origin("num_accepted_tokens", "num_draft_tokens")
        evidence.append(Evidence("acceptance, all of the time", percent(rate), source=origin))
    fault = "acceptance is a quarter below what it was at first"
    return finding(_NAME, fault, Certainty.LIKELY, evidence, 0.5 + figures.drift / 4)


def _fallen(figures: Figures, before: Figures) -> Iterable[Finding]:
    earlier, later = _tokens(before), _tokens(figures)
    if not later[1] or later[0] / later[1] > (1.0 - _DROP) * earlier[0] / earlier[1]:
        return
    if z_of_fall(*earlier, *later) < _SURE:
        return
    source = figures.origin("num_accepted_tokens", "num_draft_tokens")
    now, then = later[0] / later[1], earlier[0] / earlier[1]
    evidence = [Evidence("acceptance within the window", percent(now), f"{percent(then)} before it", source)]
    yield finding(_NAME, "acceptance has fallen", Certainty.LIKELY, evidence, 1.0 - now / then)


def _tokens(figures: Figures) -> tuple[float, float]:
    return figures.num_accepted_tokens or 0.0, figures.num_draft_tokens or 0.0


def _recorded(records: Records) -> Iterable[Finding]:
    rows = records.drafted
    (a, n), (b, m) = _sums(rows[: len(rows) // 2]), _sums(rows[len(rows) // 2 :])
    if b / m > (1.0 - _DROP) * a / n or z_of_fall(a, n, b, m) < _SURE:
        return
    evidence = [
        Evidence("acceptance of the later half", percent(b / m), f"{percent(a / n)} of the earlier", records.source)
    ]
    yield finding(_NAME, "acceptance has fallen", Certainty.LIKELY, evidence, 1.0 - (b / m) / (a / n))


def _sums(rows: list[Record]) -> tuple[int, int]:
    return sum(row.num_accepted_tokens for row in rows), sum(row.num_draft_tokens for row in rows)


DIAGNOSIS = Diagnosis(
    _NAME,
    "acceptance has drifted down",
    "our own server's drift monitor; acceptance within the window against before it; the later half of the records "
    "against the earlier",
    "find what changed: the prompts (train the head on recent ones: `outrider serve --distill`, `outrider train`), or "
    "the target's weights or template (`outrider heads check` measures that on a fixed text)",
    _check,
    ("low_acceptance",),
)
