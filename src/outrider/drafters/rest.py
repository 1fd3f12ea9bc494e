"""REST: continue the longest context that a datastore holds, by the frequency of what followed it there.

Source: REST, arXiv 2311.08252. The longest end of the sequence, of ``rest_max_context`` to ``rest_min_context`` tokens,
that occurs in any of the datastores gives the continuations: ``rest_continuation_tokens`` after each occurrence, of an
even sample of about ``rest_max_continuations`` occurrences. Where there are fewer, shorter contexts fill the sample up,
which the paper does not do. The continuations are merged into a tree (``growth.grow``) of as many nodes as the planner
or ``num_speculative_tokens`` asks for, likeliest path first; ties are settled by the order of the datastore, so that
equal contexts get equal drafts. Without a match nothing is drafted. Datastores are read only and learn nothing from
requests, so tenants may share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import DraftSequence
from outrider.drafters.datastore import Datastore
from outrider.drafters.growth import GrowthRule, grow
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.registry import DrafterContext
from outrider.drafters.retrieval import retrieve

# A context of m tokens in a datastore predicts about as well as one of m - 6 in the request itself: measured on a small
# chat model's greedy answers to programming tasks, with library sources as the datastore.
_DISCOUNT = 6


@dataclass(slots=True)
class RestState:
    """How many tokens of a sequence were seen: the datastores hold all the rest."""

    length: int

    def extend(self, tokens: Sequence[int]) -> None:
        """Count ``tokens``."""
        self.length += len(tokens)

    def truncate(self, length: int) -> None:
        """Count ``length`` tokens in all."""
        self.length = length


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What is looked up: tokens of context, occurrences, tokens after each."""

    max_context: int
    min_context: int
    max_continuations: int
    continuation_tokens: int


class RestDrafter(LookupDrafter[RestState]):
    """Retrieval from one or more datastores."""

    def __init__(self, stores: Sequence[Datastore], retrieval: Retrieval, rule: GrowthRule, max_model_len: int) -> None:
        super().__init__("rest", max_model_len)
        self.stores, self._retrieval, self._rule = stores, retrieval, rule

    def start(self, seq: DraftSequence) -> RestState:
        """The count of what the sequence holds."""
        return RestState(len(seq.token_ids))

    def draft(self, seq: DraftSequence, state: RestState, budget: int) -> Draft:
        """A tree or a chain of what followed the longest context, or nothing."""
        wanted = self._retrieval
        tokens, count = seq.token_ids[-wanted.max_context :], min(budget, wanted.continuation_tokens)
        length, rows = retrieve(self.stores, tokens, wanted.min_context, wanted.max_continuations, count)
        if not rows:
            return EMPTY
        context = max(0, length - _DISCOUNT)
        draft, _ = grow(rows, context, budget, self._rule, self.method, self.confidence_floor)
        return draft


def build(config: SpeculativeConfig, context: DrafterContext) -> RestDrafter:
    """The drafter of method ``rest``. Raises ConfigError for a datastore that the target cannot use."""
    fingerprint = None if context.tokenizer_fingerprint is None else context.tokenizer_fingerprint()
    return RestDrafter(
        stores=[Datastore.open(Path(path), fingerprint) for path in config.datastores],
        retrieval=Retrieval(
            config.rest_max_context,
            config.rest_min_context,
            config.rest_max_continuations,
            config.rest_continuation_tokens,
        ),
        rule=GrowthRule(min_prob=0.0, tree=config.rest_tree, eos_ids=context.eos_ids),
        max_model_len=context.max_model_len,
    )
