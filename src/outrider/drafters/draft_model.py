"""A small language model as drafter: chain, K chains, or a tree of any shape, over a cache pool of its own.

Expansion rows lie behind the committed length and are forgotten; the KV of accepted chain rows is kept, since it
depends on tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from outrider.cache.pool import BlockPool
from outrider.cache.prefix import PrefixIndex
from outrider.cache.storage import KVStorage
from outrider.cache.table import BlockTable
from outrider.config import SpeculativeConfig
from outrider.drafters.base import Committed, Drafter, DraftNoise, DraftSequence
from outrider.drafters.levels import NEVER, LevelDrafter, LevelGrowth, Stops, stops_of
from outrider.drafters.registry import DrafterContext
from outrider.drafters.static_trees import read_table
from outrider.drafters.translate import Translated
from outrider.drafters.trees import Shape, shape_of
from outrider.errors import CacheError, ConfigError, NumericsError
from outrider.target.batch import Span
from outrider.target.costs import CostCurve, curve_of
from outrider.target.model import Target

T = TypeVar("T")
_BLOCK = 16
_CHUNK = 256  # prompt rows per forward


@dataclass(slots=True)
class DraftState:
    """A sequence's cache; ``chain`` holds the tokens whose KV lies behind the committed length, in place.

    ``dirty``: a forward of it was not finite, so its blocks are zeroed before reuse.
    """

    table: BlockTable
    dirty: bool = False
    chain: list[int] = field(default_factory=list)


@dataclass(slots=True)
class DraftGrowth(LevelGrowth):
    """A growing draft, and where the keys and values of its expanded nodes are."""

    state: DraftState = field(kw_only=True)
    rows: dict[int, int] = field(default_factory=dict)  # of a node: its slot, counted from the root's successor


class DraftModel(LevelDrafter[DraftGrowth]):
    """Drafts with a causal language model that has the target's vocabulary."""

    method = "draft_model"
    shift = 0  # a row holds the token that stands so many places behind its own
    growth = DraftGrowth

    def __init__(self, model: Target, shape: Shape, vocab_size: int, cache_tokens: int, stops: Stops = NEVER) -> None:
        self.model = model.over(vocab_size)
        self._open(model.new_storage, model.max_model_len, curve_of(model), shape, cache_tokens, stops)

    def _open(
        self,
        new_storage: Callable[[int, int], KVStorage],
        context: int,
        curve: CostCurve,
        shape: Shape,
        cache_tokens: int,
        stops: Stops,
    ) -> None:
        """The cache pool and what decides about a draft's form. ``context``: positions that the rows can have."""
        self._context = context
        self._grow_by(shape, stops, curve)
        blocks = max(1, -(-cache_tokens // _BLOCK))
        self._storage = new_storage(blocks * _BLOCK, _BLOCK)
        self.pool = self._storage.new_pool()
        self._index = PrefixIndex(self.pool)
        self._states: dict[int, DraftState] = {}

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """Compute the prompt, but for what the prefix index has."""
        if self._num_rows(seq) <= self._context:
            state = self._state(seq)
            with suppress(CacheError):  # no room now: propose tries again
                self._catch_up(seq, state, leave=1)

    def kv_pools(self) -> dict[str, BlockPool]:
        """Its own."""
        return {self.method: self.pool}

    def _num_rows(self, seq: DraftSequence) -> int:
        """Rows of the committed tokens, the root's included."""
        return len(seq.token_ids) - self.shift

    def num_computed(self, seq: DraftSequence) -> int:
        """Tokens of ``seq`` whose KV the draft's cache holds."""
        state = self._states.get(seq.seq_id)
        return 0 if state is None else state.table.length

    def _state(self, seq: DraftSequence) -> DraftState:
        state = self._states.get(seq.seq_id)
        if state is None:
            state = self._states[seq.seq_id] = DraftState(BlockTable(self.pool, self._index))
            state.table.reuse(seq.token_ids, seq.cache_salt)
        return state

    def _catch_up(self, seq: DraftSequence, state: DraftState, leave: int) -> None:
        """Compute committed tokens in chunks until ``leave`` are left."""
        table = state.table
        while (ahead := self._num_rows(seq) - leave - table.length) > 0:
            count, first = min(ahead, _CHUNK), table.length + self.shift
            self._reserve(table, table.length + count)
            chunk = seq.token_ids[first : first + count]
            self._fill(seq, state, Span(chunk, table.slots_tensor(), table.length, logits=[]))
            table.commit(table.length + count)
            table.publish(seq.token_ids, seq.cache_salt)

    def _fill(self, seq: DraftSequence, state: DraftState, span: Span) -> None:
        """Compute rows of committed tokens for the cache alone."""
        self._forward([state], [span])

    def _forward(self, states: Sequence[DraftState], spans: Sequence[Span]) -> Tensor:
        """Raw logits of the wanted rows of ``spans``, the spans of ``states``."""
        return self._guarded(states, spans, lambda: self.model.forward(spans, self._storage).logits)

    def _guarded(self, states: Sequence[DraftState], spans: Sequence[Span], call: Callable[[], T]) -> T:
        """What ``call``, the forward over ``spans``, returns; the cost curve and the states learn how it went."""
        try:
            return self._timed(sum(len(span.tokens) for span in spans), len(spans), call)
        except NumericsError:
            for state in states:
                state.dirty = True
            raise

    def _reserve(self, table: BlockTable, num_tokens: int) -> None:
        self._storage.copy_blocks(table.reserve(num_tokens))

    def _settle(self, growth: DraftGrowth) -> None:
        """The KV of the root is computed; that of drafted tokens is forgotten."""
        growth.state.table.commit(self._num_rows(growth.seq))

    def _start(self, seq: DraftSequence, budget: int) -> DraftGrowth | None:
        """A draft ready to grow, or None when there is no budget, no context left, or no room in the cache now."""
        length = self._num_rows(seq)
        room = self._context - length  # levels behind the first that have a position
        if budget < 1 or room < 0:
            return None
        state = self._state(seq)
        state.chain = []
        try:
            self._catch_up(seq, state, leave=1 if length - state.table.length > _CHUNK else _CHUNK)
            if state.table.length == length:  # proposed before: the root is recomputed
                state.table.commit(length - 1)
            self._reserve(state.table, length + self.shape.rows(budget))
        except CacheError:
            return None
        growth = self.growth(budget, min(room + 1, self.shape.levels(budget)), seq=seq, state=state)
        self.shape.start(growth)
        return growth

    def _expand(self, live: Sequence[DraftGrowth]) -> dict[int, Tensor]:
        """One forward over all frontiers: raw logits [frontier, vocab] by sequence."""
        logits = self._forward([growth.state for growth in live], [self._span(growth) for growth in live])
        parts = torch.split(logits, [len(growth.frontier) for growth in live])
        return {growth.seq.seq_id: part for growth, part in zip(live, parts, strict=True)}

    def _span(self, growth: DraftGrowth) -> Span:
        """The rows of a frontier; those of the root with what the cache lacks before it."""
        table, length = growth.state.table, self._num_rows(growth.seq)
        if growth.frontier == [-1]:
            chunk = growth.seq.token_ids[table.length + self.shift :]
            return Span(chunk, table.slots_tensor(), table.length, logits=[len(chunk) - 1])
        for node in growth.frontier:
            growth.rows[node] = len(growth.rows)
        slots = table.slots(length, len(growth.rows))
        return Span(
            [growth.tokens[node] for node in growth.frontier],
            table.slots_tensor(),
            length,
            slots=[slots[growth.rows[node]] for node in growth.frontier],
            paths=[[slots[growth.rows[n]] for n in growth.path(node)[:-1]] for node in growth.frontier],
        )

    def _branch(self, growth: DraftGrowth, logits: Tensor, depth: int, noise: DraftNoise) -> None:
        """As all; of a chain, take down the tokens whose KV lies in place."""
        frontier, chain = growth.frontier, growth.state.chain
        if depth > 0 and len(frontier) == 1 and len(chain) == depth - 1:
            chain.append(growth.tokens[frontier[0]])
        super()._branch(growth, logits, depth, noise)

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Keep the KV of accepted chain rows: the draft's cache holds exactly what it would after prefill."""
        state = self._states.get(seq.seq_id)
        if state is None:
            return
        before = len(seq.token_ids) - len(committed.token_ids)
        same = 0
        for mine, theirs in zip(state.chain, committed.token_ids[:-1], strict=False):
            if mine != theirs:
                break
            same += 1
        if state.table.length == before and same:
            state.table.commit(before + same)
        state.chain = []

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """Roll the cache back below ``length`` tokens."""
        state = self._states.get(seq.seq_id)
        if state is not None:
            state.chain = []
            state.table.commit(min(state.table.length, max(0, length - 1 - self.shift)))

    def release(self, seq: DraftSequence) -> None:
        """Free the sequence's blocks; its full ones stay in the prefix index until they are needed."""
        state = self._states.pop(seq.seq_id, None)
        if state is not None:
            state.table.release(state.dirty)

    def close(self) -> None:
        """Free all sequences' blocks."""
        for state in self._states.values():
            state.table.release(state.dirty)
        self._states.clear()


def build(config: SpeculativeConfig, context: DrafterContext, kind: type[DraftModel] | None = None) -> Drafter:
    """The drafter of a config; the engine loads the model and has compared the vocabularies."""
    kind = kind or DraftModel
    if context.load_draft is None:
        raise ConfigError(f"method {config.method} needs an engine that can load models")
    source = context.load_draft(config)
    if config.tree_kind == "static" and config.tree_file is not None:
        read_table(config.tree_file).check(context.target_fingerprint, source.model.fingerprint)
    vocab_size = context.vocab_size if source.token_map is None else source.model.vocab_size
    drafter = kind(source.model, shape_of(config), vocab_size, source.cache_tokens, stops_of(config))
    return drafter if source.token_map is None else Translated(drafter, source.token_map)
