"""EAGLE-3 (arXiv 2503.01840): a trained layer over the target's hidden states drafts chains and trees.

The head's row t holds the token at t + 1 and the target's features of position t, so that its last row is the root's.
Rows below it take the output of the row above as their feature. The keys and values of committed tokens are computed
from the target's true features, never kept from drafting, where the features were guesses.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.cache.table import BlockTable
from outrider.config import SpeculativeConfig
from outrider.drafters.base import Committed, Drafter, DraftSequence, HeadSource, Needs
from outrider.drafters.draft_model import NEVER, DraftGrowth, DraftModel, DraftState, Stops
from outrider.drafters.registry import DrafterContext
from outrider.drafters.trees import Shape, shape_of
from outrider.errors import CacheError, ConfigError, NumericsError
from outrider.heads.decoder import HeadDecoder
from outrider.target.batch import Span
from outrider.target.costs import CostCurve, measure

_CHUNK = 256  # rows per forward while the cache catches up
_FEW = 8  # rows a sequence: a forward that drafts, as against one that catches up
_BLOCK = 16
_CONTEXT = 256  # tokens behind the rows whose time is measured


@dataclass(slots=True)
class _Known:
    """The target's features of a sequence's first positions: one row for each whose next token is known."""

    parts: list[Tensor] = field(default_factory=list)

    def rows(self) -> Tensor:
        """[positions, layers * hidden]."""
        if len(self.parts) > 1:
            self.parts = [torch.cat(self.parts)]
        return self.parts[0]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)


@dataclass(slots=True)
class _Growth(DraftGrowth):
    """``outputs``: what a node's row handed down, by node; -1 is the root."""

    outputs: dict[int, Tensor] = field(default_factory=dict)


class EagleDrafter(DraftModel):
    """Drafts with an EAGLE-3 head."""

    method = "eagle3"

    def __init__(self, source: HeadSource, shape: Shape, stops: Stops = NEVER) -> None:
        self.head, self._target = source.head, source.target
        self.needs = Needs(hidden_layers=self.head.config.hidden_layers)
        self._ids = self.head.target_ids
        curve = head_curve(self.head, source.target.vocab_size)
        self._open(self.head.new_storage, curve, shape, source.cache_tokens, stops)
        self._features: dict[int, _Known] = {}

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """Keep the prompt's features and compute all rows but the root's."""
        self._features[seq.seq_id] = _Known([] if hidden is None else [hidden])
        if len(seq.token_ids) <= self.head.config.max_position_embeddings:
            with suppress(CacheError):  # no room now: propose tries again
                self._compute(seq, leave=1)

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Take down the true features of what was committed; the next proposal computes their rows."""
        if committed.hidden is not None and seq.seq_id in self._features:
            self._features[seq.seq_id].parts.append(committed.hidden)

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """Forget what lies behind ``length`` tokens."""
        known = self._features.get(seq.seq_id)
        if known is not None and len(known):
            known.parts = [known.rows()[: max(0, length - 1)]]
        state = self._states.get(seq.seq_id)
        if state is not None:
            state.table.commit(min(state.table.length, max(0, length - 2)))

    def release(self, seq: DraftSequence) -> None:
        """Free the sequence's blocks and features."""
        self._features.pop(seq.seq_id, None)
        super().release(seq)

    def close(self) -> None:
        """Free all sequences' blocks and features."""
        self._features.clear()
        super().close()

    def _compute(self, seq: DraftSequence, leave: int) -> None:
        """Compute the rows of committed tokens in chunks until ``leave`` are left."""
        state = self._states.get(seq.seq_id)
        if state is None:
            # no prefix is reused: a row depends on features that only the target's forward over it brings
            state = self._states[seq.seq_id] = DraftState(BlockTable(self.pool))
        table, features = state.table, self._features[seq.seq_id]
        while (ahead := len(seq.token_ids) - 1 - leave - table.length) > 0:
            count = min(ahead, _CHUNK)
            self._reserve(table, table.length + count)
            span = Span(
                seq.token_ids[table.length + 1 : table.length + 1 + count],
                table.slots_tensor(),
                table.length,
                logits=[],
            )
            rows = features.rows()[table.length : table.length + count]
            self._run([state], [span], [self.head.fuse(rows)])
            table.commit(table.length + count)

    def _run(
        self, states: Sequence[DraftState], spans: Sequence[Span], hidden: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        begin, tokens = time.perf_counter(), [token for span in spans for token in span.tokens]
        try:
            out = self.head.forward(spans, self._storage, self._target.embed(tokens), torch.cat(list(hidden)))
        except NumericsError:
            for state in states:
                state.dirty = True
            raise
        if len(tokens) <= _FEW * len(spans):
            self._curve.observe(len(tokens), time.perf_counter() - begin)
        return out

    def _start(self, seq: DraftSequence, budget: int) -> DraftGrowth | None:
        """A draft ready to grow, or None without budget, features, positions or room in the cache."""
        length = len(seq.token_ids)
        room = self.head.config.max_position_embeddings - length + 1
        known = self._features.get(seq.seq_id)
        if budget < 1 or room < 1 or length < 2 or known is None or len(known) != length - 1:
            return None
        try:
            self._compute(seq, leave=_CHUNK)
            state = self._states[seq.seq_id]
            if state.table.length == length - 1:  # proposed before: the root's row is computed again
                state.table.commit(length - 2)
            self._reserve(state.table, length - 1 + self.shape.rows(budget))
        except CacheError:
            return None
        growth = _Growth(budget, min(room, self.shape.levels(budget)), seq=seq, state=state)
        self.shape.start(growth)
        return growth

    def _settle(self, growth: DraftGrowth) -> None:
        growth.state.table.commit(len(growth.seq.token_ids) - 1)

    def _expand(self, live: Sequence[DraftGrowth]) -> dict[int, Tensor]:
        """One forward over all frontiers: logits [frontier, vocab] by sequence, -infinity where the head has no row."""
        spans, hidden = [], []
        for growth in live:
            assert isinstance(growth, _Growth)
            spans.append(self._span(growth))
            hidden.append(self._inputs(growth))
        logits, outputs = self._run([growth.state for growth in live], spans, hidden)
        full = logits.new_full((len(logits), self._target.vocab_size), -torch.inf)
        full[:, self._ids] = logits
        out, at, row = {}, 0, 0
        for growth, span in zip(live, spans, strict=True):
            assert isinstance(growth, _Growth)
            row += len(span.tokens)
            for place, node in enumerate(growth.frontier):
                growth.outputs[node] = outputs[row - len(growth.frontier) + place]
            out[growth.seq.seq_id] = full[at : at + len(growth.frontier)]
            at += len(growth.frontier)
        return out

    def _span(self, growth: _Growth) -> Span:
        table, tokens, first = growth.state.table, growth.seq.token_ids, len(growth.seq.token_ids) - 1
        if growth.frontier == [-1]:
            chunk = tokens[table.length + 1 :]
            return Span(chunk, table.slots_tensor(), table.length, logits=[len(chunk) - 1])
        for node in growth.frontier:
            growth.rows[node] = len(growth.rows)
        slots = table.slots(first, len(growth.rows))
        return Span(
            [growth.tokens[node] for node in growth.frontier],
            table.slots_tensor(),
            first,
            slots=[slots[growth.rows[node]] for node in growth.frontier],
            paths=[[slots[growth.rows[n]] for n in growth.path(node)[:-1]] for node in growth.frontier],
        )

    def _inputs(self, growth: _Growth) -> Tensor:
        """The features that the frontier's rows take [rows, hidden]."""
        if growth.frontier == [-1]:
            return self.head.fuse(self._features[growth.seq.seq_id].rows()[growth.state.table.length :])
        return torch.stack([growth.outputs[growth.parents[node]] for node in growth.frontier])


def head_curve(head: HeadDecoder, vocab_size: int) -> CostCurve:
    """Seconds of a forward of so many rows behind some context, the scatter into the target's vocabulary included."""
    tokens = min(_CONTEXT, head.config.max_position_embeddings // 2)
    rows = [n for n in (1, 2, 4, 8, 16, 32) if tokens + n <= head.config.max_position_embeddings]
    slots = -(-(tokens + rows[-1]) // _BLOCK) * _BLOCK
    storage, context = head.new_storage(slots, _BLOCK), torch.arange(slots, dtype=torch.int32)
    width = head.config.hidden_size

    def forward(n: int) -> None:
        zeros = torch.zeros(n, width, device=head.device)
        logits, _ = head.forward([Span([1] * n, context, tokens)], storage, zeros, zeros.clone())
        logits.new_full((n, vocab_size), -torch.inf)[:, head.target_ids] = logits

    return measure(forward, rows, limit=1.0)


def build(config: SpeculativeConfig, context: DrafterContext) -> Drafter:
    """The drafter of a config; the engine loads the head and has compared it with the target."""
    if context.load_head is None:
        raise ConfigError(f"method {config.method} needs an engine that can load heads")
    stops = Stops(config.draft_confidence_threshold, config.draft_stop_rejection)
    return EagleDrafter(context.load_head(config), shape_of(config), stops)
