"""The window of the metrics says nothing: the server was restarted within it, or the scrape does not move."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking

_NAME = "stale_window"


def _check(case: Case) -> Iterable[Finding]:
    figures = case.metrics
    if figures.resets:
        evidence = [Evidence("counters that fell", ", ".join(figures.resets[:3]), "none", figures.source)]
        fault = "counters were reset within the window: rates over it are wrong, and what is shown is since the restart"
        yield finding(_NAME, fault, Certainty.CERTAIN, evidence, 1.0)
        return
    if figures.before is None:
        raise Lacking("two scrapes (--window SECONDS, or two files)")
    if not figures.moved and figures.num_running:
        evidence = [
            Evidence("counters that changed", "0", f"some, with {figures.num_running:.0f} requests running"),
            Evidence("running", f"{figures.num_running:.0f}", source=figures.origin("num_running")),
        ]
        fault = "requests run, but no counter moves: the scrape is cached, or of a process that does not serve"
        yield finding(_NAME, fault, Certainty.CERTAIN, evidence, 1.0)


DIAGNOSIS = Diagnosis(
    _NAME,
    "the metrics' window is stale",
    "counters that fell between two scrapes, a new start time of the process, counters that stand still",
    "take both scrapes from one life of one process; in PromQL use rate() or increase(), which know resets, never a "
    "difference of counters; scrape replicas one by one",
    _check,
    ("drift", "prefix_hits_lost", "speculation_off"),
)
