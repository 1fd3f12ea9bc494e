"""What a step did, told to the requests that want to know: tokens it committed, and drafted ones that were rejected."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from outrider.core.draft import Draft
from outrider.core.verifiers.base import Walk
from outrider.outputs import StepToken, ToldStep

if TYPE_CHECKING:
    from outrider.engine.sequence import Sequence
    from outrider.engine.step import Work
    from outrider.target.model import Target


def tell(work: Seq[Work], seconds: float, target: Target) -> None:
    """Add the step to every sequence that collects them. ``seconds``: of the forward, shared by rows."""
    rows = sum(item.num_rows for item in work)
    for item in work:
        if item.seq.steps is not None and item.walk is not None and item.failure is None:
            item.seq.steps.append(_told(item, item.walk, seconds * item.num_rows / rows, target))


def _told(item: Work, walk: Walk, seconds: float, target: Target) -> ToldStep:
    seq, draft, text_of = item.seq, item.draft, target.tokenizer.token_text
    count = item.num_committed
    start = len(seq.output_ids) - count
    accepted = [*(_source(item, node) for node in walk.path), ""]
    lost = rejected(draft, walk) if count > len(walk.path) else []
    return ToldStep(
        tokens=[_token(seq, start + at, accepted[at]) for at in range(count)],
        rejected=[StepToken(draft.tokens[node], text_of(draft.tokens[node]), _source(item, node)) for node in lost],
        num_drafted=len(draft),
        prefill=not item.decoding,
        method=seq.method,
        draft_seconds=item.draft_seconds,
        verify_seconds=seconds,
    )


def _source(item: Work, node: int) -> str:
    return item.draft.source_of(node) or item.seq.method


def _token(seq: Sequence, at: int, source: str) -> StepToken:
    start = seq.text_ends[at - 1] if at else 0
    return StepToken(seq.output_ids[at], seq.text.text[start : seq.text_ends[at]], source)


def rejected(draft: Draft, walk: Walk) -> list[int]:
    """Nodes from the end of the walk down to a leaf: at each the child that the drafter scored best, or tried first."""
    children, scores = draft.children(), draft.scores
    node, out = walk.path[-1] if walk.path else -1, []
    while below := children[node + 1]:
        node = below[0] if scores is None else max(below, key=lambda child: scores[child])
        out.append(node)
    return out
