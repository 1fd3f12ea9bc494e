"""Requests are sampled, but drafts are the likeliest tokens: they are accepted as often as the target draws those."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.figures import LOOKUPS
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking, percent
from outrider.doctor.records import Record
from outrider.doctor.statistics import z_of_fall

_NAME = "temperature"
HOT, COLD = 0.7, 0.3
_DROP = 0.25  # of the acceptance of cold requests
_SURE = 4.0  # standard errors
_SAMPLED = ("probabilistic",)  # vLLM's draft_sample_method that follows the temperature


def _check(case: Case) -> Iterable[Finding]:
    looked = False
    if case.records is not None and any(row.temperature is not None for row in case.records.rows):
        looked = True
        yield from _recorded(case.records.drafted, case.records.source, case.limits.min_drafts)
    temperature = case.limits.temperature
    if case.settings is not None and case.settings.speculative and temperature is not None:
        looked = True
        yield from _configured(case, temperature)
    if not looked:
        raise Lacking("--engine-config with --temperature, or records with temperatures")


def _recorded(rows: Sequence[Record], source: str, fewest: int) -> Iterable[Finding]:
    cold = [row for row in rows if row.temperature is not None and row.temperature <= COLD]
    hot = [row for row in rows if row.temperature is not None and row.temperature >= HOT]
    if not cold or not hot:
        raise Lacking(f"requests both below {COLD} and above {HOT} in {source}")
    drafts = min(sum(row.num_drafts for row in side) for side in (cold, hot))
    if drafts < fewest:
        raise Lacking(f"at least {fewest} drafts both below {COLD} and above {HOT} ({source} has {drafts} of one)")
    (a, n), (b, m) = _sums(cold), _sums(hot)
    if b / m > (1.0 - _DROP) * a / n or z_of_fall(a, n, b, m) < _SURE:
        return
    evidence = [
        Evidence(f"acceptance at temperatures up to {COLD}", percent(a / n), f"{len(cold)} requests", source),
        Evidence(f"acceptance from {HOT} on", percent(b / m), f"{len(hot)} requests", source),
    ]
    fault = "sampled requests accept far less than greedy ones: the drafts do not follow the temperature"
    yield finding(_NAME, fault, Certainty.LIKELY, evidence, 1.0 - (b / m) / (a / n))


def _configured(case: Case, temperature: float) -> Iterable[Finding]:
    assert case.settings is not None
    spec, method = case.settings.speculative, case.settings.method or "draft_model"
    sampling = str(spec.get("draft_sample_method", "greedy"))
    if temperature < HOT or sampling in _SAMPLED or spec.get("use_rejection_sampling"):
        return
    kind = "copies text" if method in LOOKUPS else f"drafts its likeliest token (draft_sample_method {sampling})"
    evidence = [
        Evidence("temperature of the requests", f"{temperature:g}", f"below {HOT}", "--temperature"),
        Evidence(f"method {method}", kind, "a draft that is drawn as the target draws", case.settings.source),
    ]
    fault = f"at temperature {temperature:g} a deterministic draft is accepted with the target's own probability of it"
    yield finding(_NAME, fault, Certainty.LIKELY, evidence, min(1.0, temperature / 2))


def _sums(rows: Sequence[Record]) -> tuple[int, int]:
    return sum(row.num_accepted_tokens for row in rows), sum(row.num_draft_tokens for row in rows)


DIAGNOSIS = Diagnosis(
    _NAME,
    "the temperature is high for a deterministic draft",
    "acceptance of cold against hot requests in the records; the engine's draft_sample_method and the temperature",
    "let the draft follow: draft_sample_method probabilistic in vLLM, --speculative-use-rejection-sampling in SGLang, "
    "the default rule `sample` here; or lower the temperature; or speculate on greedy requests only",
    _check,
    ("low_acceptance",),
)
