"""Speculation is configured, and nothing is drafted."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.figures import Figures
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking

_NAME = "speculation_off"
_TOKENS = 100  # generated without a draft


def _check(case: Case) -> Iterable[Finding]:
    figures = case.metrics
    if not figures.moved:
        raise Lacking("a window in which something was counted")
    tokens, origin = _work(figures)
    wanted = _configured(case, figures)
    if not figures.speculates or (figures.num_drafts is None and not figures.stated_length):
        if not wanted:
            raise Lacking(f"metrics of drafts ({figures.source} has none: speculation is not configured there)")
        if not figures.speculates:
            evidence = [Evidence("metrics of drafts", "none", "spec_decode_*", figures.source), *wanted]
            fault = "speculation is configured, but the server runs without it"
            yield finding(_NAME, fault, Certainty.CERTAIN, evidence, 1.0)
            return
    drafted = figures.num_draft_tokens if figures.num_draft_tokens is not None else figures.stated_length
    if drafted or tokens < _TOKENS:
        return
    evidence = [
        Evidence("draft tokens", "0", "over 0", figures.origin("num_draft_tokens", "stated_length")),
        Evidence("tokens generated meanwhile", f"{tokens:,.0f}", source=origin),
        *wanted,
    ]
    if figures.num_plain_steps:
        evidence.append(Evidence("steps of requests without a method", f"{figures.num_plain_steps:,.0f}"))
    yield finding(_NAME, "speculation is configured, but nothing is drafted", Certainty.CERTAIN, evidence, 1.0)


def _work(figures: Figures) -> tuple[float, str]:
    """Tokens that were generated; steps, where those are not known."""
    for field in ("num_tokens", "num_steps"):
        if (value := getattr(figures, field)) is not None:
            return value, figures.origin(field)
    raise Lacking(f"generated tokens ({figures.engine} does not count them)")


def _configured(case: Case, figures: Figures) -> list[Evidence]:
    out = []
    if case.settings is not None and case.settings.speculative:
        out.append(Evidence("configured", case.settings.method or "a draft", source=case.settings.source))
    if figures.stated_k:
        out.append(Evidence("configured K", f"{figures.stated_k:.0f}", source=figures.origin("stated_k")))
    enabled = figures.labels.get("spec_enabled", "")
    if enabled.lower() == "true":
        out.append(Evidence("spec_enabled", enabled, source="speculative_config_info"))
    return out


DIAGNOSIS = Diagnosis(
    _NAME,
    "speculation is configured but off",
    "drafts against generated tokens",
    "look at the start of the server's log for the reason; check max_num_seqs and load limits of drafting (a length of "
    "0 at this batch size), requests that switch it off, and grammars or penalties that the engine does not draft "
    "with; here `outrider trace` says of every step why nothing was drafted",
    _check,
)
