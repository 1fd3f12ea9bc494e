"""The draft speaks another vocabulary: its ids mean other tokens."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import LOW, Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking
from outrider.errors import VocabularyError
from outrider.target.tokenizer import Tokenizer
from outrider.target.vocab import compare_vocabularies

_NAME, _SAME_SIZE = "vocabulary_mismatch", "other_ids"


def _tokenizers(case: Case) -> tuple[str, Tokenizer, Tokenizer]:
    if case.models is None or (case.models.draft is None and case.models.head is None):
        raise Lacking("--target and --draft or --head")
    target = case.models.target
    if case.models.draft is not None:
        return case.models.draft.name, target.tokenizer, case.models.draft.tokenizer
    head = case.head
    if head.tokenizer is None:
        raise Lacking("a tokenizer in the head's folder (heads seldom have one)")
    return str(head.folder), target.tokenizer, head.tokenizer


def _difference(case: Case) -> tuple[str, Tokenizer, Tokenizer, str]:
    name, ours, theirs = _tokenizers(case)
    try:
        compare_vocabularies(ours, theirs)
    except VocabularyError as error:
        return name, ours, theirs, str(error)
    return name, ours, theirs, ""


def _sizes(ours: Tokenizer, theirs: Tokenizer, name: str, text: str) -> list[Evidence]:
    shown = text.partition("(target / draft: ")[2].partition(")")[0]
    counted = text.partition("): ")[2].partition(" (")[0]
    return [
        Evidence("tokens of the target", f"{len(ours):,}", source="target's tokenizer"),
        Evidence("tokens of the draft", f"{len(theirs):,}", source=f"{name}'s tokenizer"),
        Evidence("differences", counted, "0"),
        Evidence("first ones, target / draft", shown),
    ]


def _check(case: Case) -> Iterable[Finding]:
    if case.models is not None and case.models.head is not None:
        head = case.models.head
        theirs, ours = head.block.get("vocab_size"), head.bound.vocab_size
        if theirs is not None and int(theirs) != ours:
            evidence = [Evidence("vocab_size of the head", str(theirs), f"the target's {ours}", "config.json")]
            yield finding(_NAME, "the head was made for another vocabulary", Certainty.CERTAIN, evidence, 1.0)
            return
        if case.models.draft is None and head.tokenizer is None:
            return
    name, ours_, theirs_, text = _difference(case)
    if text and len(ours_) != len(theirs_):
        fault = f"{name} has another vocabulary than the target: its ids mean other tokens"
        yield finding(_NAME, fault, Certainty.CERTAIN, _sizes(ours_, theirs_, name, text), 1.0)


def _check_same_size(case: Case) -> Iterable[Finding]:
    name, ours, theirs, text = _difference(case)
    if text and len(ours) == len(theirs):
        fault = f"{name} has as many tokens as the target, but some ids mean other ones"
        yield finding(_SAME_SIZE, fault, Certainty.CERTAIN, _sizes(ours, theirs, name, text), 1.0)


_EXPLAINS = ("weights_not_loaded", "wrong_layers", "chat_template", "draft_slow", *LOW)

MISMATCH = Diagnosis(
    _NAME,
    "draft and target have different vocabularies",
    "the id-to-token maps of the two tokenizers, placeholders left out; of a head its `vocab_size`",
    "use a draft of the target's family; or let ids be translated: vocabulary tli or slem here, "
    "use_heterogeneous_vocab in vLLM",
    _check,
    _EXPLAINS,
)
OTHER_IDS = Diagnosis(
    _SAME_SIZE,
    "vocabularies of one size, but other ids",
    "the id-to-token maps of the two tokenizers where both have as many tokens, which a check of sizes lets pass",
    "take the draft's tokenizer from the release that belongs to the target, or a draft of its family; sizes that are "
    "equal prove nothing",
    _check_same_size,
    _EXPLAINS,
)
