"""An acceptance rate that is a mean over requests: short answers count as much as long ones."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import LACKS_RECORDS, Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking, need, percent

_NAME = "counted_by_request"
_APART = 0.03
_FEWEST = 5  # requests


def _check(case: Case) -> Iterable[Finding]:
    records = need(case.records, LACKS_RECORDS)
    reported, source = case.limits.reported, "--reported-acceptance"
    if reported is None and case.figures and case.figures[0].stated_rate is not None:
        reported, source = case.figures[0].stated_rate, case.figures[0].origin("stated_rate")
    reported = need(reported, "the rate that is shown elsewhere (--reported-acceptance)")
    rates = [rate for row in records.drafted if (rate := row.rate) is not None]
    if len(rates) < _FEWEST:
        raise Lacking(f"at least {_FEWEST} requests that drafted ({records.source} has {len(rates)})")
    accepted = sum(row.num_accepted_tokens for row in records.drafted)
    drafted = sum(row.num_draft_tokens for row in records.drafted)
    pooled, mean = accepted / drafted, sum(rates) / len(rates)
    if abs(mean - pooled) < _APART or abs(reported - pooled) < _APART or abs(reported - mean) >= abs(reported - pooled):
        return
    evidence = [
        Evidence("reported acceptance", percent(reported), f"pooled: {percent(pooled)}", source),
        Evidence("pooled over tokens", f"{accepted:,} / {drafted:,} = {percent(pooled)}", source=records.source),
        Evidence("mean of the requests' rates", percent(mean), f"of {len(rates)} requests", records.source),
    ]
    fault = "the reported acceptance is the mean of the requests' rates, not accepted / drafted tokens"
    yield finding(_NAME, fault, Certainty.CERTAIN, evidence, abs(mean - pooled) * 5)


DIAGNOSIS = Diagnosis(
    _NAME,
    "acceptance is counted by request instead of by token",
    "a rate that is shown elsewhere against both ways to count the same records",
    "divide sums: accepted tokens of all requests / drafted tokens of all requests; in PromQL "
    "sum(rate(..accepted_tokens_total)) / sum(rate(..draft_tokens_total)), never avg() of ratios",
    _check,
)
