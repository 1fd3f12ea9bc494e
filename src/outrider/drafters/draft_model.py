"""A small language model as drafter: chain, top-k tree, or K independent chains, over a cache pool of its own.

Under a rule with shared noise a node's children are the top-k of log q + the target's noise (delta edges); under a
classical rule they are independent samples of q (arXiv 2211.17192, 2310.15141). How many are drawn at a node is fixed
before any of them is. Expansion rows lie behind the committed length and are forgotten; the KV of accepted chain rows
is kept, since it depends on tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.cache.pool import BlockPool
from outrider.cache.prefix import PrefixIndex
from outrider.cache.table import BlockTable
from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft, Iid, Law
from outrider.drafters.base import Committed, Drafter, DraftNoise, DraftSequence
from outrider.drafters.registry import DrafterContext
from outrider.drafters.translate import Translated
from outrider.errors import CacheError, ConfigError, NumericsError
from outrider.target.batch import Span
from outrider.target.costs import CostCurve, curve_of
from outrider.target.model import Target

_BLOCK = 16
_CHUNK = 256  # prompt rows per forward


@dataclass(slots=True)
class _State:
    """A sequence's cache; ``chain`` holds the tokens whose KV lies behind the committed length, in place.

    ``dirty``: a forward of it was not finite, so its blocks are zeroed before reuse.
    """

    table: BlockTable
    dirty: bool = False
    chain: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Growth:
    """A draft while it grows."""

    seq: DraftSequence
    state: _State
    budget: int
    num_paths: int  # children of the root of a draft without widths
    depth: int  # levels that it may have
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    reach: list[float] = field(default_factory=list)  # product of scores from the root
    frontier: list[int] = field(default_factory=lambda: [-1])  # nodes that were expanded last; -1 is the root

    def path(self, node: int) -> list[int]:
        """Nodes from the child of the root down to ``node``."""
        out: list[int] = []
        while node >= 0:
            out.append(node)
            node = self.parents[node]
        return out[::-1]

    def draft(self, noise: DraftNoise, source: str) -> Draft:
        """The finished draft."""
        if not self.tokens:
            return EMPTY
        chain = all(parent == node - 1 for node, parent in enumerate(self.parents))
        return Draft(
            tokens=self.tokens,
            parents=None if chain else self.parents,
            laws=None if noise.shared else self.laws,
            multiplicity=self.counts if noise.merge_paths else None,
            scores=self.scores,
            source=source,
        )


class DraftModel(Drafter):
    """Drafts with a causal language model that has the target's vocabulary."""

    method = "draft_model"

    def __init__(
        self, model: Target, widths: Sequence[int] | None, num_paths: int, vocab_size: int, cache_tokens: int
    ) -> None:
        self.model, self._widths, self._num_paths = model, widths, num_paths
        self._vocab_size = vocab_size  # the target's; the draft's own may be padded differently
        blocks = max(1, -(-cache_tokens // _BLOCK))
        self._storage = model.new_storage(blocks * _BLOCK, _BLOCK)
        self.pool = BlockPool(blocks, _BLOCK, zero_blocks=self._storage.zero_blocks)
        self._index = PrefixIndex(self.pool)
        self._states: dict[int, _State] = {}
        self._curve: CostCurve = curve_of(model)

    def seconds(self, num_sequences: int, num_tokens: int) -> float:
        """Time of the forwards that draw ``num_tokens`` nodes for each sequence, one forward a level."""
        if self._widths is None:
            levels, width = -(-num_tokens // self._num_paths), self._num_paths
        else:
            levels, width = min(num_tokens, len(self._widths)), max(1, num_tokens // len(self._widths))
        return levels * self._curve(num_sequences * width)

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """Compute the prompt, but for what the prefix index has."""
        if len(seq.token_ids) <= self.model.max_model_len:
            state = self._state(seq)
            with suppress(CacheError):  # no room now: propose tries again
                self._catch_up(seq, state, leave=1)

    def num_computed(self, seq: DraftSequence) -> int:
        """Tokens of ``seq`` whose KV the draft's cache holds."""
        state = self._states.get(seq.seq_id)
        return 0 if state is None else state.table.length

    def _state(self, seq: DraftSequence) -> _State:
        state = self._states.get(seq.seq_id)
        if state is None:
            state = self._states[seq.seq_id] = _State(BlockTable(self.pool, self._index))
            state.table.reuse(seq.token_ids, seq.cache_salt)
        return state

    def _catch_up(self, seq: DraftSequence, state: _State, leave: int) -> None:
        """Compute committed tokens in chunks until ``leave`` are left."""
        table = state.table
        while (ahead := len(seq.token_ids) - leave - table.length) > 0:
            count = min(ahead, _CHUNK)
            self._reserve(table, table.length + count)
            chunk = seq.token_ids[table.length : table.length + count]
            self._forward([state], [Span(chunk, table.slots_tensor(), table.length, logits=[])])
            table.commit(table.length + count)
            table.publish(seq.token_ids, seq.cache_salt)

    def _forward(self, states: Sequence[_State], spans: Sequence[Span]) -> Tensor:
        """Raw logits of the wanted rows of ``spans``, the spans of ``states``."""
        if self.model.vocab_size < self._vocab_size:  # an id that is padding to the target may have no embedding here
            for span in spans:
                span.tokens = [token if token < self.model.vocab_size else 0 for token in span.tokens]
        try:
            return self.model.forward(spans, self._storage).logits
        except NumericsError:
            for state in states:
                state.dirty = True
            raise

    def _reserve(self, table: BlockTable, num_tokens: int) -> None:
        self._storage.copy_blocks(table.reserve(num_tokens))

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """Grow all drafts level by level, one forward a level."""
        grown = [self._start(seq, budget) for seq, budget in zip(sequences, budgets, strict=True)]
        live = [growth for growth in grown if growth is not None]
        depth = 0
        while live:
            rows = self._expand(live)
            for growth in live:
                self._branch(growth, rows[growth.seq.seq_id], depth, noise)
            depth += 1
            live = [growth for growth in live if growth.frontier and self._may_grow(growth, depth)]
        for done in grown:
            if done is not None:
                done.state.table.commit(len(done.seq.token_ids))
        return [EMPTY if growth is None else growth.draft(noise, self.method) for growth in grown]

    def _start(self, seq: DraftSequence, budget: int) -> _Growth | None:
        """A draft ready to grow, or None when there is no budget, no context left, or no room in the cache now."""
        length = len(seq.token_ids)
        room = self.model.max_model_len - length  # levels behind the first that have a position
        if budget < 1 or room < 0:
            return None
        paths = min(self._num_paths, budget)
        depth = min(room + 1, budget // paths if self._widths is None else len(self._widths))
        state = self._state(seq)
        state.chain = []
        try:
            self._catch_up(seq, state, leave=1 if length - state.table.length > _CHUNK else _CHUNK)
            if state.table.length == length:  # proposed before: the root is recomputed
                state.table.commit(length - 1)
            self._reserve(state.table, length + budget)
        except CacheError:
            return None
        return _Growth(seq, state, budget, paths, depth)

    def _may_grow(self, growth: _Growth, depth: int) -> bool:
        if depth >= growth.depth or len(growth.tokens) >= growth.budget:
            return False
        return max(growth.reach[node] for node in growth.frontier) >= self.confidence_floor

    def _expand(self, live: Sequence[_Growth]) -> dict[int, Tensor]:
        """One forward over all frontiers: raw logits [frontier, vocab] by sequence."""
        spans = []
        for growth in live:
            table, length = growth.state.table, len(growth.seq.token_ids)
            if growth.frontier == [-1]:
                chunk = growth.seq.token_ids[table.length :]
                spans.append(Span(chunk, table.slots_tensor(), table.length, logits=[len(chunk) - 1]))
                continue
            slots = table.slots(length, len(growth.tokens))
            spans.append(
                Span(
                    [growth.tokens[node] for node in growth.frontier],
                    table.slots_tensor(),
                    length,
                    slots=[slots[node] for node in growth.frontier],
                    paths=[[slots[n] for n in growth.path(node)[:-1]] for node in growth.frontier],
                )
            )
        logits = self._forward([growth.state for growth in live], spans)
        out, at = {}, 0
        for growth in live:
            out[growth.seq.seq_id] = logits[at : at + len(growth.frontier)]
            at += len(growth.frontier)
        return out

    def _branch(self, growth: _Growth, logits: Tensor, depth: int, noise: DraftNoise) -> None:
        """Give every frontier node its children; those that can be expanded further are the next frontier."""
        seq, frontier = growth.seq, growth.frontier
        output = seq.token_ids[seq.num_prompt_tokens :] if seq.pipeline.needs_history else ()
        in_place = depth == 0 or len(frontier) == 1
        if depth > 0 and in_place and len(growth.state.chain) == depth - 1:
            growth.state.chain.append(growth.tokens[frontier[0]])
        growth.frontier = []
        drawn = 0
        for node, row in zip(frontier, logits, strict=True):
            path = [growth.tokens[n] for n in growth.path(node)] if seq.pipeline.needs_history else ()
            try:
                scores = seq.pipeline.process(self._fit(row), output, path)
            except NumericsError:  # no token that the draft knows is allowed here
                continue
            position = len(seq.token_ids) + depth
            width = min(self._width(growth, node, depth, noise), growth.budget - len(growth.tokens))
            if width < 1:
                break
            if noise.shared:
                picks = noise.candidates(seq, scores, position, width)
                q = _chances(scores, picks)
                for token, chance in zip(picks, q, strict=True):
                    self._add(growth, node, token, chance, None, 1)
                continue
            law = _law(scores, seq.pipeline.greedy)
            tokens = [noise.sample(seq, law.q, position, drawn + index) for index in range(width)]
            drawn += width
            counted = {t: tokens.count(t) for t in dict.fromkeys(tokens)}
            merged = counted.items() if noise.merge_paths else [(token, 1) for token in tokens]
            for token, count in merged:
                self._add(growth, node, token, float(law.q[token]), law, count)

    def _fit(self, row: Tensor) -> Tensor:
        """A raw row [draft vocab] over the target's vocabulary; ids that only one of the two has are padding."""
        missing = self._vocab_size - row.shape[0]
        return row[: self._vocab_size] if missing <= 0 else torch.cat((row, row.new_full((missing,), -torch.inf)))

    @staticmethod
    def _add(growth: _Growth, parent: int, token: int, chance: float, law: Law | None, count: int) -> None:
        growth.tokens.append(token)
        growth.parents.append(parent)
        growth.scores.append(chance)
        growth.reach.append(chance * (growth.reach[parent] if parent >= 0 else 1.0))
        growth.counts.append(count)
        if law is not None:
            growth.laws.append(law)
        growth.frontier.append(len(growth.tokens) - 1)

    def _width(self, growth: _Growth, node: int, depth: int, noise: DraftNoise) -> int:
        if self._widths is not None:
            return self._widths[depth]
        if depth == 0:
            return growth.num_paths
        return growth.counts[node] if noise.merge_paths else 1

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
            state.table.commit(min(state.table.length, max(0, length - 1)))

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


def _chances(scores: Tensor, tokens: Sequence[int]) -> list[float]:
    """q of ``tokens`` under processed ``scores`` [vocab]."""
    picked = torch.exp(scores[torch.tensor(tokens)] - torch.logsumexp(scores, 0))
    return [float(value) for value in picked]


def _law(scores: Tensor, greedy: bool) -> Iid:
    """The processed law that samples are drawn from; one-hot at temperature 0."""
    if greedy:
        q = torch.zeros(scores.shape, dtype=torch.float64)
        q[scores.argmax()] = 1.0
        return Iid(q)
    return Iid(torch.softmax(scores.double(), 0))


def build(config: SpeculativeConfig, context: DrafterContext) -> Drafter:
    """The drafter of a config; the engine loads the model and has compared the vocabularies."""
    if context.load_draft is None:
        raise ConfigError("method draft_model needs an engine that can load models")
    source = context.load_draft(config)
    vocab_size = context.vocab_size if source.token_map is None else source.model.vocab_size
    drafter = DraftModel(source.model, config.tree, config.num_paths, vocab_size, source.cache_tokens)
    return drafter if source.token_map is None else Translated(drafter, source.token_map)
