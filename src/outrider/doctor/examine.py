"""Runs all diagnoses over a case and puts the likeliest fault first.

Order: findings that no other one explains, the certain before the likely before the possible, and within one certainty
those that are furthest beyond their limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.table import DIAGNOSES
from outrider.doctor.figures import Figures
from outrider.doctor.finding import Evidence, Finding, Lacking, Report, Unchecked, percent


def examine(case: Case, notes: Sequence[str] = ()) -> Report:
    """The report on ``case``; ``notes``: what the caller could not read."""
    findings: list[Finding] = []
    unchecked: list[Unchecked] = []
    for diagnosis in DIAGNOSES.values():
        own: list[Finding] = []
        try:
            for found in diagnosis.check(case):
                own.append(replace(found, remedy=diagnosis.remedy))
        except Lacking as lacking:
            if not own:
                unchecked.append(Unchecked(diagnosis.name, str(lacking)))
        if own:  # of several methods the worst
            findings.append(max(own, key=lambda found: (found.certainty, found.weight)))
    left = {each.diagnosis for each in unchecked}
    checked = [name for name in DIAGNOSES if name not in left]
    return Report(rank(findings), unchecked, checked, seen(case), notes)


def rank(findings: Sequence[Finding]) -> list[Finding]:
    """The likeliest first; those that follow from another one behind it."""
    ordered = sorted(findings, key=lambda found: (-found.certainty, -found.weight))
    out: list[Finding] = []
    for found in ordered:
        causes = [other for other in ordered if found.diagnosis in DIAGNOSES[other.diagnosis].explains]
        stronger = [other for other in causes if other.certainty >= found.certainty]
        out.append(replace(found, follows_from=stronger[0].diagnosis if stronger else ""))
    return sorted(out, key=lambda found: bool(found.follows_from))


def seen(case: Case) -> list[Evidence]:
    """The figures that were read."""
    out = [line for figures in case.figures for line in _figures(figures)]
    out = list({(line.what, line.value): line for line in out}.values())  # methods share the server's own figures
    if case.records is not None:
        records = case.records
        count = f"{len(records.rows)}" + (f", {records.left_out} other lines left out" if records.left_out else "")
        out += [Evidence("requests recorded", count, source=records.source), *_figures(records.figures())]
        rates = [rate for row in records.drafted if (rate := row.rate) is not None]
        if rates:
            mean = percent(sum(rates) / len(rates))
            out.append(Evidence("mean of the requests' rates", mean, "quote the pooled one", records.source))
    if case.settings is not None:
        spec = ", ".join(f"{key} {value}" for key, value in case.settings.speculative.items())
        out.append(Evidence("draft settings", spec or "none", source=case.settings.source))
    return out + _models(case)


def _models(case: Case) -> list[Evidence]:
    models = case.models
    if models is None:
        return []
    out = []
    for what, side in (("target", models.target), ("draft", models.draft)):
        if side is not None:
            facts = f"{len(side.tokenizer):,} tokens, context {side.context}, {side.num_weights / 1e6:,.1f} M weights"
            out.append(Evidence(what, facts, source=side.name))
    if models.head is not None:
        config = models.head.head.config if models.head.head else None
        facts = models.head.problem if config is None else f"{config.kind}, layers {list(config.hidden_layers)}"
        out.append(Evidence("head", f"{facts} (layout {models.head.layout})", source=str(models.head.folder)))
    if models.measured is not None:
        run = models.measured
        limit = "" if run.recorded is None else f"{percent(run.recorded)} when it was trained"
        text = f"a run over {run.num_tokens} tokens"
        out.append(Evidence("first draft is the target's choice", percent(run.agreement), limit, text))
    return out


def _figures(figures: Figures) -> list[Evidence]:
    window = "since the start" if figures.before is None else "within the window"
    if figures.seconds is not None:
        window = f"within {figures.seconds:.0f} s"
    of = f" of {figures.method}" if figures.method else ""
    out = []
    if figures.num_drafts is not None:
        numbers = f"{figures.num_drafts:,.0f}"
        out.append(Evidence(f"drafts{of}", numbers, window, figures.origin("num_drafts")))
    if (rate := figures.acceptance_rate) is not None:
        origin = figures.origin("num_accepted_tokens", "num_draft_tokens") if figures.num_draft_tokens else ""
        out.append(
            Evidence(f"draft acceptance rate{of}", percent(rate), source=origin or figures.origin("stated_rate"))
        )
    if (length := figures.acceptance_length) is not None:
        out.append(Evidence(f"mean acceptance length{of}", f"{length:.2f}"))
    if figures.per_position:
        out.append(Evidence(f"accepted by position{of}", ", ".join(map(percent, figures.per_position))))
    for what, value in (
        ("tokens generated", figures.num_tokens),
        ("requests running", figures.num_running),
        ("requests waiting", figures.num_waiting),
        ("preemptions", figures.num_preemptions),
    ):
        if value is not None:
            out.append(Evidence(what, f"{value:,.0f}"))
    if (hits := figures.hit_rate) is not None:
        out.append(Evidence("prefix cache hits", percent(hits)))
    if figures.going_rate is not None:
        out.append(Evidence("tokens per second over plain", f"{figures.going_rate:.2f}", source="going_rate"))
    for pool, share in figures.cache_usage.items():
        out.append(Evidence(f"blocks in use, {pool}", percent(share)))
    return out
