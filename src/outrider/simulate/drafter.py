"""A drafter that proposes what was recorded or drawn, and says how long that would have taken."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Drafter, DraftNoise, DraftSequence
from outrider.simulate.acceptance import Acceptance, Opportunity
from outrider.simulate.costs import CostModel


class SimulatedDrafter(Drafter):
    """``profiles``: by seq_id, which recorded request it is like; ``spent``: seconds of the latest proposal."""

    def __init__(self, method: str, acceptance: Acceptance, costs: CostModel) -> None:
        self.method = method
        self.profiles: dict[int, int] = {}
        self.spent = 0.0
        self._acceptance, self._costs = acceptance, costs
        self._timed = costs.level(method, 1) > 0.0

    def opportunity(self, seq: DraftSequence) -> Opportunity:
        """What it would propose now if rows cost nothing, and what the target does there."""
        position = len(seq.token_ids) - seq.num_prompt_tokens
        return self._acceptance.at(self.profiles[seq.seq_id], seq.seq_id, position)

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """The drafts, cut to budgets and to what is over the floor. One with a model ends with the level that falls
        below it, which it has computed by then."""
        drafts, computed = [], []
        for seq, budget in zip(sequences, budgets, strict=True):
            draft, levels = self._cut(self.opportunity(seq).draft, budget)
            drafts.append(draft)
            computed.append(levels)
        self.spent = self._costs.drafting(self.method, len(sequences))
        if self._timed:
            deepest = max(computed, default=0)
            beside = (sum(levels >= depth for levels in computed) for depth in range(1, deepest + 1))
            self.spent += sum(self._costs.level(self.method, count) for count in beside)
        return drafts

    def _cut(self, draft: Draft, budget: int) -> tuple[Draft, int]:
        """What is left, and the levels that were computed for it."""
        reach: list[float] = []
        kept: dict[int, None] = {}
        scores = draft.scores or ()
        for node, score in enumerate(scores):
            parent = draft.parent(node)
            reach.append(score * (1.0 if parent < 0 else reach[parent]))
            above = parent < 0 or (parent in kept and (not self._timed or reach[parent] >= self.confidence_floor))
            if above and len(kept) < budget and (self._timed or reach[node] >= self.confidence_floor):
                kept[node] = None
        if not kept:
            return EMPTY, 1
        short = draft if len(kept) == len(draft) else draft.keep(list(kept))
        return short, max(short.depths())

    def seconds(self, num_sequences: int, num_tokens: int) -> float:
        """A level a token, as chains have."""
        return num_tokens * self._costs.level(self.method, num_sequences) if self._timed else 0.0
