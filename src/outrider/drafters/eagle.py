"""EAGLE (arXiv 2401.15077, 2406.16858, 2503.01840) and MTP (arXiv 2412.19437): a trained layer over the target's hidden
states drafts chains and trees.

The head's row t holds the token at t + 1 and the target's features of position t, so that its last row is the root's.
Rows below it take the output of the row above as their feature. The keys and values of committed tokens are computed
from the target's true features, never kept from drafting, where the features were guesses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.cache.table import BlockTable
from outrider.config import SpeculativeConfig
from outrider.drafters.base import Committed, Drafter, DraftNoise, DraftSequence, HeadSource, Needs
from outrider.drafters.draft_model import DraftGrowth, DraftModel, DraftState
from outrider.drafters.features import Features
from outrider.drafters.levels import NEVER, Stops, stops_of
from outrider.drafters.registry import DrafterContext
from outrider.drafters.trees import Paths, Shape, shape_of
from outrider.errors import ConfigError, NumericsError
from outrider.heads.decoder import HeadDecoder
from outrider.target.batch import Span
from outrider.target.costs import CostCurve, measure
from outrider.target.fused import ChainRoot

_BLOCK = 16
Collector = Callable[[DraftSequence, Features], None]
_CONTEXT = 256  # tokens behind the rows whose time is measured


@dataclass(slots=True)
class _Growth(DraftGrowth):
    """``outputs``: what a node's row handed down, by node; -1 is the root."""

    outputs: dict[int, Tensor] = field(default_factory=dict)


class EagleDrafter(DraftModel):
    """Drafts with a recurrent head."""

    shift = 1
    growth = _Growth

    def __init__(self, source: HeadSource, shape: Shape, stops: Stops = NEVER, method: str = "eagle3") -> None:
        assert isinstance(source.head, HeadDecoder)
        self.method, self._target = method, source.target
        self._use(source.head)
        self.needs = Needs(hidden_layers=self.head.config.hidden_layers)
        curve, context = head_curve(self.head), self.head.config.max_position_embeddings
        self._open(self.head.new_storage, context, curve, shape, source.cache_tokens, stops)
        self._features: dict[int, Features] = {}
        self._collector: Collector | None = None

    @property
    def draft_temperature(self) -> float:
        """The head's own."""
        return self.head.config.draft_temperature

    def collect(self, collector: Collector | None) -> None:
        """Hand every sequence that leaves to ``collector``, with the features that were seen; None: no more. Call it
        while no sequence is there."""
        self._collector = collector
        layers = self.head.config.hidden_layers
        self.needs = Needs(hidden_layers=(*layers, self._target.num_layers - 1) if self._extra else layers)

    @property
    def _extra(self) -> bool:
        """The last layer's output comes in for the collector, behind what the head reads."""
        return self._collector is not None and not self.head.config.normed

    def swap(self, head: HeadDecoder) -> None:
        """Draft with ``head`` from now on. What the old one cached is computed anew, from the true features."""
        self._use(head)
        for state in self._states.values():
            state.table.commit(0)
            state.chain = []

    def _use(self, head: HeadDecoder) -> None:
        self.head, self.support = head, head.target_ids
        self._links = head.links(self._target.embedding_table)

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """Keep the prompt's features and compute all rows but the root's."""
        self._features[seq.seq_id] = Features(self._target, self.head.config, hidden, self._extra)
        super().begin(seq, hidden)

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Take down the true features of what was committed; the next proposal computes their rows."""
        if committed.hidden is not None and seq.seq_id in self._features:
            self._features[seq.seq_id].add(committed.hidden)

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """Forget what lies behind ``length`` tokens."""
        known = self._features.get(seq.seq_id)
        if known is not None:
            known.cut(max(0, length - 1))
        super().truncate(seq, length)

    def release(self, seq: DraftSequence) -> None:
        """Free the sequence's blocks and features."""
        known = self._features.pop(seq.seq_id, None)
        if self._collector is not None and known is not None and len(known):
            self._collector(seq, known)
        super().release(seq)

    def close(self) -> None:
        """Free all sequences' blocks and features."""
        self._features.clear()
        super().close()

    def _state(self, seq: DraftSequence) -> DraftState:
        """No prefix is reused: a row depends on features that only the target's forward over it brings."""
        return self._states.setdefault(seq.seq_id, DraftState(BlockTable(self.pool)))

    def _fill(self, seq: DraftSequence, state: DraftState, span: Span) -> None:
        features = self._features[seq.seq_id].rows()[span.start : span.start + len(span.tokens)]
        self._run([state], [span], [self.head.enter(features)])

    def _run(
        self, states: Sequence[DraftState], spans: Sequence[Span], hidden: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Logits of the wanted rows over the draft vocabulary, and the outputs of all rows."""
        embedded = self._target.embed([token for span in spans for token in span.tokens])
        return self._guarded(
            states, spans, lambda: self.head.forward(spans, self._storage, embedded, torch.cat(list(hidden)))
        )

    def _start(self, seq: DraftSequence, budget: int) -> DraftGrowth | None:
        """As without features; None where they are not known up to the root."""
        known = self._features.get(seq.seq_id)
        if known is None or not len(known) or len(known) != self._num_rows(seq):
            return None
        return super()._start(seq, budget)

    def _expand(self, live: Sequence[DraftGrowth]) -> dict[int, Tensor]:
        """One forward over all frontiers: logits [frontier, draft vocab] by sequence."""
        hidden = [self._inputs(growth) for growth in live]
        spans = [self._span(growth) for growth in live]
        logits, outputs = self._run([growth.state for growth in live], spans, hidden)
        wanted = [len(growth.frontier) for growth in live]
        for growth, rows in zip(live, torch.split(outputs, [len(span.tokens) for span in spans]), strict=True):
            assert isinstance(growth, _Growth)
            growth.outputs.update(zip(growth.frontier, rows[-len(growth.frontier) :], strict=True))
        return {growth.seq.seq_id: part for growth, part in zip(live, torch.split(logits, wanted), strict=True)}

    def _run_on(self, growth: DraftGrowth, depth: int, noise: DraftNoise) -> int:
        """A greedy chain goes on in one call of the kernels."""
        pipeline, shape = growth.seq.pipeline, self.shape
        greedy = noise.shared and pipeline.greedy and pipeline.plain
        if self._links is None or not greedy or not isinstance(shape, Paths) or shape.count > 1:
            return 0
        assert isinstance(growth, _Growth)
        node = growth.frontier[0]
        most = min(growth.levels - depth, shape.limit(growth.budget) - len(growth.tokens))
        tokens = torch.empty(most, dtype=torch.int64)
        root = ChainRoot(
            token=growth.tokens[node],
            position=self._num_rows(growth.seq) + depth - 1,
            hidden=growth.outputs[growth.parents[node]].clone(),
            slots=growth.state.table.slots_tensor(),
            tokens=tokens,
            reach=growth.reach[node],
            confidence=self._stops.confidence,
            certainty=self._stops.certainty,
            floor=self.confidence_floor,
        )
        begin = time.perf_counter()
        try:
            chances = self.head.chain(self._links, root, self._storage)
        except NumericsError:
            growth.state.dirty = True
            raise
        self._took(1, 1, time.perf_counter() - begin, len(chances))
        for token, chance in zip(tokens.tolist(), chances, strict=False):
            growth.add(len(growth.tokens) - 1, 0, token, chance, None, 1)
        return len(chances)

    def _inputs(self, growth: DraftGrowth) -> Tensor:
        """The features that the frontier's rows take [rows, hidden]."""
        assert isinstance(growth, _Growth)
        if growth.frontier == [-1]:
            return self.head.enter(self._features[growth.seq.seq_id].rows()[growth.state.table.length :])
        return torch.stack([growth.outputs[growth.parents[node]] for node in growth.frontier])


def head_curve(head: HeadDecoder) -> CostCurve:
    """Seconds of a forward of so many rows behind some context."""
    tokens = min(_CONTEXT, head.config.max_position_embeddings // 2)
    rows = [n for n in (1, 2, 4, 8, 16, 32) if tokens + n <= head.config.max_position_embeddings]
    slots = -(-(tokens + rows[-1]) // _BLOCK) * _BLOCK
    storage, context = head.new_storage(slots, _BLOCK), torch.arange(slots, dtype=torch.int32)
    width = head.config.hidden_size

    def forward(n: int) -> None:
        zeros = torch.zeros(n, width, device=head.device)
        head.forward([Span([1] * n, context, tokens)], storage, zeros, zeros)

    return measure(forward, rows, limit=1.0)


def build(config: SpeculativeConfig, context: DrafterContext) -> Drafter:
    """The drafter of a config; the engine loads the head and has compared it with the target."""
    if context.load_head is None:
        raise ConfigError(f"method {config.method} needs an engine that can load heads")
    return EagleDrafter(context.load_head(config), shape_of(config), stops_of(config), config.method)
