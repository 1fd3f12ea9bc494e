"""Draft and target compute in different number formats, so that the draft sees other values than in training."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking

_NAME = "number_format"
_FLOATS = ("float16", "bfloat16", "float32")


def _check(case: Case) -> Iterable[Finding]:
    looked = False
    if case.settings is not None and case.settings.speculative:
        looked = True
        yield from _caches(case)
    if case.models is not None:
        from outrider.doctor.models import format_of

        head, draft = case.models.head, case.models.draft
        ours = case.models.target.number_format
        theirs = draft.number_format if draft else format_of(head.block) if head else None
        looked = looked or (ours is not None and theirs is not None)
        if ours and theirs and ours != theirs and not ({ours, theirs} <= {"bfloat16", "float32"}):
            quantised = ours not in _FLOATS and head is not None
            evidence = [
                Evidence("the target's weights", ours, source="config.json"),
                Evidence("the draft's weights", theirs, f"{ours}, or known to be trained for it", "config.json"),
            ]
            fault = f"the target is {ours} and the draft {theirs}" + (
                ": a head reads the target's hidden states, and quantised ones differ" if quantised else ""
            )
            yield finding(_NAME, fault, Certainty.POSSIBLE, evidence, 0.6 if quantised else 0.3)
    if not looked:
        raise Lacking("--engine-config with a draft, or --target and a draft whose configs name their formats")


def _caches(case: Case) -> Iterable[Finding]:
    assert case.settings is not None
    target, draft = case.settings.target, case.settings.speculative
    ours, theirs = str(target.get("kv_cache_dtype") or "auto"), str(draft.get("kv_cache_dtype") or "auto")
    if theirs == "auto" or theirs == ours:
        return
    evidence = [
        Evidence("kv_cache_dtype of the target", ours, source=case.settings.source),
        Evidence("kv_cache_dtype of the draft", theirs, ours, case.settings.source),
    ]
    fault = f"the draft's KV cache is {theirs} and the target's {ours}"
    yield finding(_NAME, fault, Certainty.LIKELY, evidence, 0.8)


DIAGNOSIS = Diagnosis(
    _NAME,
    "draft and target compute in different formats",
    "kv_cache_dtype of both in the engine's settings; quantisation and dtype in both configs",
    "give the draft the target's kv_cache_dtype; run the draft in the format that it was trained beside, or train the "
    "head on the quantised target; then compare acceptance with both formats",
    _check,
)
