"""The draft was tuned on conversations that are written otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from outrider.doctor.case import LACKS_DRAFT, Case
from outrider.doctor.diagnoses.base import LOW, Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking, need
from outrider.errors import OutriderError
from outrider.target.tokenizer import Tokenizer

_NAME = "chat_template"
_TALK = [
    {"role": "user", "content": "What is a draft?"},
    {"role": "assistant", "content": "A guess."},
    {"role": "user", "content": "And a target?"},
]
_SHOWN = 40  # characters of what differs


def _written(tokenizer: Tokenizer) -> str:
    try:
        return tokenizer.render_chat(_TALK)
    except OutriderError as error:
        raise Lacking(f"a chat template that takes user and assistant messages ({error})") from None


def _check(case: Case) -> Iterable[Finding]:
    models = need(case.models, LACKS_DRAFT)
    theirs = models.draft.tokenizer if models.draft else models.head.tokenizer if models.head else None
    theirs = need(theirs, "a draft with a tokenizer of its own")
    ours = models.target.tokenizer
    if not ours.has_chat_template or not theirs.has_chat_template:
        without = "the target" if not ours.has_chat_template else "the draft"
        raise Lacking(f"a chat template on both sides ({without} has none)")
    mine, other = _written(ours), _written(theirs)
    if mine == other:
        return
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(mine, other, strict=False)))
    evidence = [
        Evidence("the target writes", repr(mine[same : same + _SHOWN]), source="its chat template, user and assistant"),
        Evidence("the draft was tuned on", repr(other[same : same + _SHOWN]), source="its chat template"),
        Evidence("equal characters before", str(same), f"all {len(mine)}"),
    ]
    fault = "the chat templates differ: the draft sees conversations in a form that it was not tuned on"
    yield finding(_NAME, fault, Certainty.LIKELY, evidence, 1.0 - same / max(len(mine), 1))


DIAGNOSIS = Diagnosis(
    _NAME,
    "draft and target have different chat templates",
    "one conversation, rendered by both templates",
    "use a draft that was tuned with the target's template, or tune it on the target's own answers (`outrider train "
    "draft_model`); a template given to the server with --chat-template counts as the target's",
    _check,
    LOW,
)
