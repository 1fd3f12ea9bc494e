"""A recorder of steps: what was proposed, verified, accepted and emitted, with the laws behind it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.core.draft import Delta, Draft
from outrider.core.verifiers.base import LAWS
from outrider.core.verifiers.edges import edge_law
from outrider.engine.step import Work
from outrider.errors import ContractError
from outrider.target.tokenizer import Tokenizer
from outrider.telemetry.record import Candidate, Kind, NodeRecord, Outcome, StepRecord, TokenRecord
from outrider.telemetry.words import planned

_BEST = 4  # of the target's tokens, at a node that the walk visited
_LAW_NAMES = {kind: name for name, kind in LAWS.items()}
Key = tuple[str, int]  # request id, sample


@dataclass(slots=True)
class _Progress:
    """What was known of a sequence before its latest step."""

    steps: list[StepRecord] = field(default_factory=list)
    num_output: int = 0
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


class StepRecorder:
    """Collects the steps of every sequence that begins while it listens; see ``LLM.record``.

    It computes the target's laws once more, after the step's time was taken, so that no counter and no time shows it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[Key, _Progress] = {}

    def steps(self, request_id: str, index: int = 0) -> list[StepRecord]:
        """The steps of one sample of one request; number 0 is its prefill."""
        known = self._known.get((request_id, index))
        return [] if known is None else known.steps

    def record(self, work: Sequence[Work]) -> None:
        """Take down a step of every sequence that emitted tokens."""
        for item in work:
            if item.walk is None or item.logits is None:
                continue
            key = (item.seq.request_id, item.seq.index)
            if not item.decoding:
                self._known.setdefault(key, _Progress())
            if key in self._known:
                self._add(item, self._known[key])

    def _add(self, item: Work, known: _Progress) -> None:
        seq, walk = item.seq, item.walk
        assert walk is not None
        laws = _Laws(item, known.num_output)
        kept = match(item.proposed, item.draft)
        where = {node: original for original, node in kept.items()}
        full = item.proposed if len(item.proposed) else item.draft
        if full is item.draft:  # nothing was pruned, or nothing was proposed
            kept = where = {node: node for node in range(len(full))}
        tokens = seq.output_ids[known.num_output :]
        seconds = (seq.stats.draft_seconds, seq.stats.verify_seconds, seq.stats.overhead_seconds)
        draft, verify, overhead = (now - before for now, before in zip(seconds, known.seconds, strict=True))
        text = self._tokenizer.token_text
        known.steps.append(
            StepRecord(
                number=len(known.steps),
                position=known.num_output,
                root=text(seq.token_ids[len(seq.token_ids) - len(tokens) - 1]),
                num_asked=item.num_asked,
                num_rows=item.num_rows,
                nodes=[self._node(item, full, node, kept, laws) for node in range(len(full))],
                path=[where[node] for node in walk.path],
                emitted=self._emitted(item, tokens, where, laws, known.decoder),
                best=[self._best(laws, node) for node in (-1, *walk.path)],
                words=planned(item),
                draft_seconds=draft,
                verify_seconds=verify,
                overhead_seconds=overhead,
            )
        )
        known.num_output, known.seconds = len(seq.output_ids), seconds

    def _node(self, item: Work, full: Draft, node: int, kept: dict[int, int], laws: _Laws) -> NodeRecord:
        parent, token, law = full.parent(node), full.tokens[node], full.law(node)
        above = -1 if parent < 0 else kept.get(parent)
        return NodeRecord(
            token_id=token,
            text=self._tokenizer.token_text(token),
            parent=parent,
            depth=len(full.path(node)),
            source=full.source_of(node),
            law=_LAW_NAMES[type(law)],
            outcome=_outcome(item, kept.get(node), above),
            q=draft_law(full, node),
            score=None if full.scores is None else float(full.scores[node]),
            p=laws.p(above, token) if above is not None else None,
            raw=laws.raw(above, token) if above is not None else None,
        )

    def _emitted(
        self,
        item: Work,
        tokens: Sequence[int],
        where: dict[int, int],
        laws: _Laws,
        decoder: codecs.IncrementalDecoder,
    ) -> list[TokenRecord]:
        assert item.walk is not None
        path, out = list(item.walk.path), []
        for at, token in enumerate(tokens):
            before = -1 if at == 0 else path[at - 1]
            drafted = at < len(path)
            out.append(
                TokenRecord(
                    token_id=token,
                    text=decoder.decode(
                        self._tokenizer.token_bytes(token), item.seq.finished and at == len(tokens) - 1
                    ),
                    kind="drafted" if drafted else _kind(item),
                    node=where[path[at]] if drafted else None,
                    p=laws.p(before, token),
                    raw=laws.raw(before, token),
                )
            )
        return out

    def _best(self, laws: _Laws, node: int) -> list[Candidate]:
        ids = laws.best(node, _BEST)
        text = self._tokenizer.token_text
        return [Candidate(text(token), laws.p(node, token), laws.raw(node, token)) for token in ids]


class _Laws:
    """The target's law at the nodes of a step that is over: processed, and raw."""

    def __init__(self, item: Work, num_output: int) -> None:
        self._item, self._output = item, item.seq.output_ids[:num_output]
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def p(self, node: int, token: int) -> float:
        """Processed: what the verifier saw."""
        return float(self._at(node)[0][token])

    def raw(self, node: int, token: int) -> float:
        """Softmax of the raw logits."""
        return float(self._at(node)[1][token])

    def best(self, node: int, count: int) -> list[int]:
        """The likeliest tokens, by the processed law and then by the raw one."""
        p, raw = self._at(node)
        return [int(token) for token in torch.topk(p + 1e-6 * raw, min(count, len(p))).indices]

    def _at(self, node: int) -> tuple[Tensor, Tensor]:
        if node not in self._known:
            item = self._item
            assert item.logits is not None
            row, path = item.logits[node + 1], [item.draft.tokens[n] for n in item.draft.path(node)]
            p = item.seq.pipeline.probs(row, self._output, path, torch.float64)
            self._known[node] = p, torch.softmax(row.to(torch.float64), 0)
        return self._known[node]


def match(proposed: Draft, verified: Draft) -> dict[int, int]:
    """Node of ``proposed`` -> node of ``verified``, for those that the planner kept: equal tokens on equal paths."""
    free: dict[tuple[int, ...], list[int]] = {}
    paths = _token_paths(proposed)
    for node in range(len(proposed)):
        free.setdefault(paths[node], []).append(node)
    return {free[path].pop(0): node for node, path in enumerate(_token_paths(verified)) if free.get(path)}


def draft_law(draft: Draft, node: int) -> float | None:
    """What the law of the edge gives its token; None for a delta edge, and for a law that is none."""
    law, parent = draft.law(node), draft.parent(node)
    if isinstance(law, Delta):
        return None
    earlier = [other for other in range(node) if draft.parent(other) == parent]
    try:
        values = edge_law(draft, node, earlier, torch.empty_like(law.q))
    except ContractError:  # the step did without this draft, and said why
        return None
    return None if values is None else float(values[draft.tokens[node]])


def _token_paths(draft: Draft) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = []
    for node, token in enumerate(draft.tokens):
        parent = draft.parent(node)
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return out


def _outcome(item: Work, node: int | None, above: int | None) -> Outcome:
    assert item.walk is not None
    if node is None:
        return "pruned"
    if node in item.walk.path:
        return "accepted"
    return "rejected" if above in (-1, *item.walk.path) else "not reached"


def _kind(item: Work) -> Kind:
    """What the token after the accepted ones is called."""
    assert item.walk is not None
    if not item.decoding:
        return "first"
    if not len(item.draft):
        return "plain"
    last = item.walk.path[-1] if item.walk.path else -1
    return "recovered" if any(item.draft.parent(node) == last for node in range(len(item.draft))) else "bonus"


__all__ = ["StepRecorder", "draft_law", "match"]
