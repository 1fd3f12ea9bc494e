"""Next to nothing is accepted: the draft's weights are not what they should be."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import LOW, Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking, percent

_NAME = "weights_not_loaded"
_NEVER = 0.05  # of first draft tokens


def _check(case: Case) -> Iterable[Finding]:
    looked = False
    if case.models is not None and case.models.head is not None:
        looked = True
        yield from _files(case)
    lacking = "" if looked else "metrics, records, or --target and --head"
    if case.figures or case.records is not None:
        for figures in case.drafting:
            if not figures.trained:
                lacking = f"a drafter with weights ({figures.source} drafts with {figures.method})"
                continue
            rate = figures.first_acceptance if figures.first_acceptance is not None else figures.acceptance_rate
            if rate is None:
                lacking = f"accepted and drafted tokens ({figures.source} has none)"
                continue
            case.enough(figures)
            looked, lacking = True, ""
            if rate < _NEVER:
                what = "first draft tokens accepted" if figures.per_position else "draft tokens accepted"
                origin = figures.origin("num_accepted_tokens", "accepted_per_position", "stated_rate")
                evidence = [Evidence(what, percent(rate), f"at least {percent(_NEVER)}", origin)]
                if figures.num_drafts is not None:
                    count = f"{figures.num_drafts:,.0f}"
                    evidence.append(Evidence("drafts", count, source=figures.origin("num_drafts")))
                fault = "next to nothing is accepted, as of a draft with random weights or another vocabulary"
                yield finding(_NAME, fault, Certainty.LIKELY, evidence, 1.0 - rate)
    if lacking and not looked:
        raise Lacking(lacking)


def _files(case: Case) -> Iterable[Finding]:
    head, measured = case.head, case.models.measured if case.models else None
    if head.head is None and "lacks" in head.problem:
        evidence = [Evidence("reading the head", head.problem, source=str(head.folder))]
        fault = "the head's file lacks tensors; an engine that does not check leaves them random"
        yield finding(_NAME, fault, Certainty.CERTAIN, evidence, 1.0)
        return
    flat = [
        name
        for name, tensor in head.checkpoint.tensors.items()
        if tensor.is_floating_point() and tensor.ndim == 2 and tensor.numel() and not bool(tensor.any())
    ]
    if flat:
        evidence = [Evidence("tensors that are zero", ", ".join(flat[:4]), "none", str(head.folder))]
        yield finding(_NAME, "the head has matrices that are all zero", Certainty.CERTAIN, evidence, 1.0)
    elif measured is not None and max(measured.agreement, *measured.others.values(), 0.0) < _NEVER:
        text = f"a run over {measured.num_tokens} tokens"
        value = percent(measured.agreement)
        evidence = [Evidence("first draft is the target's choice", value, f"at least {percent(_NEVER)}", text)]
        yield finding(_NAME, "the head guesses nothing right", Certainty.CERTAIN, evidence, 1.0)


DIAGNOSIS = Diagnosis(
    _NAME,
    "the draft's weights are not loaded",
    "acceptance at the first position; of a head also missing and zero tensors, and a run over a text",
    "compare the tensor names in the file with those that the engine reads and look for skipped ones in its log "
    "(`outrider heads convert` writes each engine's layout), then check vocabulary, d2t and layers (--target, --head)",
    _check,
    ("wrong_layers", "draft_slow", "drift", *LOW),
)
