"""A step's work as rows of the forward, and the forward's output as each sequence's own."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import torch

from outrider.target.batch import Span
from outrider.target.model import TargetOutput

if TYPE_CHECKING:
    from outrider.engine.step import Work


def span_of(item: Work) -> Span:
    """The rows of one sequence: uncomputed tokens, then the draft's nodes, then its probes."""
    seq, draft = item.seq, item.draft
    assert seq.table is not None
    start, count = seq.num_computed, item.part.num_rows
    tokens = seq.token_ids[start : start + count]
    context = seq.table.slots_tensor()
    if not item.samples:
        return Span(tokens, context, start, logits=[])
    if not len(draft) and draft.probes is None:
        return Span(tokens, context, start, logits=[count - 1])
    tokens = [*tokens, *draft.tokens]
    root = count - 1
    if draft.is_chain and draft.probes is None:
        return Span(tokens, context, start, logits=None if not root else range(root, len(tokens)))
    parents = [*range(-1, root), *(draft.parent(node) + count for node in range(len(draft)))]
    if draft.probes is not None:
        base = len(parents)
        parents += [root if parent < 0 else base + parent for parent in draft.probes.parents]
        tokens = [*tokens, *draft.probes.tokens]
    return Span(tokens, context, start, parents=parents, logits=None if not root else range(root, len(tokens)))


def hand_out(work: Seq[Work], output: TargetOutput, layers: Seq[int]) -> None:
    """Give each sequence its rows of the output, and of the tapped ``layers`` those that its drafter asked for."""
    at = row = 0
    for item in work:
        if item.samples:
            wanted = item.num_rows - item.part.num_rows + 1
            item.logits = output.logits[at : at + wanted]
            at += wanted
        if output.hidden is not None and item.seq.hidden_layers:
            mine, own = output.hidden[row : row + item.num_rows], item.seq.hidden_layers
            if own != tuple(layers):
                width = output.hidden.shape[1] // len(layers)
                mine = torch.cat(
                    [mine[:, place * width : (place + 1) * width] for place in map(layers.index, own)], dim=1
                )
            item.hidden = mine
        row += item.num_rows
