"""Suffix decoding: continue the longest context seen before, in this request or in finished ones, by frequency.

Source: SuffixDecoding, arXiv 2411.04975. The longest context (up to ``suffix_decoding_max_tree_depth`` tokens) that
occurred before in the request's prompt and output, and in the outputs of finished requests, gives two sets of
continuations. A draft has at most ``suffix_decoding_max_spec_factor`` x (length of the context) tokens and grows by
``growth.grow``. Of the two drafts the one with more expected accepted tokens is proposed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import DraftSequence
from outrider.drafters.context_index import ContextIndex
from outrider.drafters.growth import GrowthRule, grow
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.output_store import OutputStore
from outrider.drafters.registry import DrafterContext

_MAX_OCCURRENCES = 64  # counts are exact up to here and taken from an even sample above
_STORE_DISCOUNT = 1  # a context of m tokens in another output predicts about as well as one of m - 1 in this request


class SuffixState:
    """The index of one sequence's prompt and output."""

    def __init__(self, depth: int) -> None:
        self.index = ContextIndex(depth)

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self.index.end - self.index.origin

    def extend(self, tokens: Sequence[int]) -> None:
        """Append ``tokens``."""
        self.index.extend(tokens)

    def truncate(self, length: int) -> None:
        """Remove tokens from the end until ``length`` are left."""
        self.index.truncate(self.index.origin + length)

    def match(self, limit: int, count: int) -> tuple[int, list[array[int]]]:
        """As ``OutputStore.match``, within the sequence."""
        last = self.index.end - 1
        match = self.index.match(self.index.context(last), limit, without=last)
        return match.length, [self.index.tokens(end + 1, end + 1 + count) for end in match.ends]


class SuffixDrafter(LookupDrafter[SuffixState]):
    """Suffix decoding over each sequence and a store of finished outputs."""

    def __init__(
        self, rule: GrowthRule, depth: int, max_spec_factor: float, store: OutputStore, max_model_len: int
    ) -> None:
        super().__init__("suffix", max_model_len)
        self.store = store
        self._rule, self._depth, self._factor = rule, depth, max_spec_factor

    def start(self, seq: DraftSequence) -> SuffixState:
        """An index of everything the sequence holds."""
        state = SuffixState(self._depth)
        state.extend(seq.token_ids)
        return state

    def draft(self, seq: DraftSequence, state: SuffixState, budget: int) -> Draft:
        """A chain or a tree of what followed the longest earlier context, or nothing."""
        count = min(budget, int(self._factor * self._depth))
        last = state.index.context(state.index.end - 1)
        local = self._grow(*state.match(_MAX_OCCURRENCES, count), budget)
        found = self.store.match(seq.cache_salt, last, _MAX_OCCURRENCES, count)
        stored = self._grow(*found, budget, discount=_STORE_DISCOUNT)
        draft, _ = max(local, stored, key=lambda grown: grown[1])
        return draft

    def release(self, seq: DraftSequence) -> None:
        """Put the output into the store; a sequence that returns after preemption replaces what it left."""
        if seq.seq_id in self._states or seq.seq_id in self._begun:
            self.store.add(seq.cache_salt, seq.seq_id, seq.token_ids[seq.num_prompt_tokens :])
        super().release(seq)

    def close(self) -> None:
        """Drop all states and the store."""
        super().close()
        self.store.clear()

    def _grow(
        self, length: int, continuations: list[array[int]], budget: int, discount: int = 0
    ) -> tuple[Draft, float]:
        size = min(budget, int(self._factor * length))
        if not continuations or size < 1:
            return EMPTY, 0.0
        return grow(continuations, length - discount, size, self._rule, self.method, self.confidence_floor)


def build(config: SpeculativeConfig, context: DrafterContext) -> SuffixDrafter:
    """The drafter of method ``suffix``."""
    depth = config.suffix_decoding_max_tree_depth
    return SuffixDrafter(
        rule=GrowthRule(config.suffix_decoding_min_token_prob, config.suffix_decoding_tree, context.eos_ids),
        depth=depth,
        max_spec_factor=config.suffix_decoding_max_spec_factor,
        store=OutputStore(depth, config.suffix_decoding_max_cached_requests),
        max_model_len=context.max_model_len,
    )
