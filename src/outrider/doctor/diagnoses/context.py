"""The draft can read less text than the target is served with; behind that, nothing good is drafted."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking

_NAME = "draft_context"


def _check(case: Case) -> Iterable[Finding]:
    served, served_from = _served(case)
    draft, draft_from = _drafted(case)
    if draft >= served:
        return
    evidence = [Evidence("context of the draft", f"{draft:,} tokens", f"{served:,} ({served_from})", draft_from)]
    if case.records is not None:
        lengths = [(row.prompt_tokens or 0) + (row.completion_tokens or 0) for row in case.records.rows]
        longer = sum(length > draft for length in lengths)
        evidence.append(Evidence("requests that are longer", f"{longer} of {len(lengths)}", source=case.records.source))
    fault = f"the draft reads {draft:,} tokens and the target is served with {served:,}: longer requests get none"
    yield finding(_NAME, fault, Certainty.CERTAIN, evidence, 1.0 - draft / served)


def _served(case: Case) -> tuple[int, str]:
    if case.limits.max_model_len is not None:
        return case.limits.max_model_len, "--max-model-len"
    if case.settings is not None and (given := case.settings.length(case.settings.target)) is not None:
        return given, f"max_model_len in {case.settings.source}"
    if case.models is not None and case.models.target.context is not None:
        return case.models.target.context, f"{case.models.target.name}'s config.json"
    raise Lacking("the target's context (--max-model-len, --target or --engine-config)")


def _drafted(case: Case) -> tuple[int, str]:
    if case.settings is not None and (given := case.settings.length(case.settings.speculative)) is not None:
        return given, f"max_model_len of the draft in {case.settings.source}"
    if case.models is not None and case.models.draft is not None and case.models.draft.context is not None:
        return case.models.draft.context, f"{case.models.draft.name}'s config.json"
    if case.models is not None and case.models.head is not None:
        length = case.models.head.block.get("max_position_embeddings")
        if length is not None:
            return int(length), f"max_position_embeddings in {case.models.head.folder}/config.json"
    raise Lacking("the draft's context (--draft, --head, or max_model_len of the draft in --engine-config)")


DIAGNOSIS = Diagnosis(
    _NAME,
    "the draft's context is shorter than the target's",
    "`max_position_embeddings` or `max_model_len` of both, and how many recorded requests are longer",
    "raise the draft's max_model_len or its max_position_embeddings if it was trained for more, take a draft with the "
    "target's context, or serve long requests without it",
    _check,
)
