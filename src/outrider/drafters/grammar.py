"""What a structured output must say next, as far as only one text can follow: names and punctuation of a JSON schema,
the rest of a choice once its beginning tells it.

The text is certain, how it is cut into tokens is not: the draft is cut as the tokenizer does, the target may differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Drafter, DraftNoise, DraftSequence
from outrider.drafters.registry import DrafterContext

_OWN_WAY = 0.95  # chance that the target cuts the text as the tokenizer does, to start with


class GrammarDrafter(Drafter):
    """Chains of forced tokens; nothing for requests without a structured output."""

    method = "grammar"

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """One chain per sequence; all edges are delta."""
        return [_forced(seq, budget) for seq, budget in zip(sequences, budgets, strict=True)]


def _forced(seq: DraftSequence, budget: int) -> Draft:
    constraint = seq.pipeline.constraint
    if constraint is None or budget < 1:
        return EMPTY
    tokens = list(constraint.forced(seq.token_ids[seq.num_prompt_tokens :]))[:budget]
    return Draft(tokens, scores=[_OWN_WAY] * len(tokens), source="grammar") if tokens else EMPTY


def build(config: SpeculativeConfig, context: DrafterContext) -> GrammarDrafter:
    """The drafter of method ``grammar``."""
    return GrammarDrafter()
