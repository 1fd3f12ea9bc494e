"""Merge: one tree of the drafts of several drafters, within one budget of nodes.

Source: TAPS, arXiv 2603.27027, whose merged tree keeps equal prefixes twice and has the nodes of both drafters; here a
path is one node, and the nodes of highest calibrated probability are kept. Members that take time are asked for no
more than pays beside the drafts that cost nothing. Under the classical rules, drafts with laws stand side by side as in
SpecInfer (arXiv 2305.09781), in shares of the budget that are fixed before anything is drawn, and each member draws
with noise of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters import union
from outrider.drafters.base import DraftNoise, DraftSequence
from outrider.drafters.estimates import within, worth_of
from outrider.drafters.members import Composite, Member, build_members
from outrider.drafters.registry import DrafterContext
from outrider.drafters.sharing import OwnNoise, with_probes

# Beside drafts that cost nothing, a draft model is asked where it promises this share of their rate. They take the easy
# tokens alone and leave the hard one to the next step; the longer draft takes both and what follows, which no promise
# of one step shows. (Qwen2.5-Coder 1.5B with its 0.5B on maths: by the promises alone `auto` is at 1.4 times plain
# decoding, where the model alone is at 2.1. The short drafts of a head are best asked for by their promises.)
_LONGER = 0.6


class MergeDrafter(Composite):
    """The union of its members' drafts."""

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """One tree a sequence, of at most its budget of nodes; equal paths are one node."""
        self.start(sequences, noise)
        choosing = [member for member in self.members if noise.shared or not member.draws]
        drawing = [member for member in self.members if member not in choosing]
        limits = _limits(sequences, budgets, len(drawing), bool(choosing))
        trees: list[Draft] | None = None  # of what was drafted so far
        for member in sorted(choosing, key=lambda member: not member.free):
            wanted = limits
            if not member.free and not self.fixed:
                trees = trees or self._trees(sequences, choosing, limits)
                wanted = self._wanted(member, sequences, limits, trees)
            if any(map(len, self.ask(member, sequences, wanted, self._noise(noise, member)).values())):
                trees = None
        trees = trees or self._trees(sequences, choosing, limits)
        for place, member in enumerate(drawing):
            shares = _shares(sequences, budgets, trees, place, len(drawing))
            wanted = shares if self.fixed or member.free else self._wanted(member, sequences, shares, trees)
            self.ask(member, sequences, wanted, self._noise(noise, member))
        if drawing:
            return [self._joined(seq, tree, drawing) for seq, tree in zip(sequences, trees, strict=True)]
        return [with_probes(tree, self.following(seq).drafts) for seq, tree in zip(sequences, trees, strict=True)]

    def _noise(self, noise: DraftNoise, member: Member) -> DraftNoise:
        return noise if noise.shared else OwnNoise(noise, member.key, len(self.members))

    def _wanted(
        self, member: Member, sequences: Sequence[DraftSequence], limits: Mapping[int, int], trees: Sequence[Draft]
    ) -> dict[int, int]:
        """Tokens to ask a member for that takes time, beside the tree that is there."""
        count = len(sequences)
        chances = [self.chances(seq, tree) for seq, tree in zip(sequences, trees, strict=True)]
        against = [worth_of(self.known, each, count) for each in chances]
        beside = [_by_depth(tree, each) for tree, each in zip(trees, chances, strict=True)]
        bar = _LONGER if member.model and any(each.length for each in against) else inf
        self.lengths(member, sequences, [limits[seq.seq_id] for seq in sequences], beside, against, bar)
        self.set_floor(member, count)
        return {seq.seq_id: abs(self.following(seq).asked[member.key]) for seq in sequences}

    def _trees(
        self, sequences: Sequence[DraftSequence], members: Sequence[Member], limits: Mapping[int, int]
    ) -> list[Draft]:
        return [self._merged(seq, members, limits[seq.seq_id]) for seq in sequences]

    def _merged(self, seq: DraftSequence, members: Sequence[Member], budget: int) -> Draft:
        drafts = self.following(seq).drafts
        parts = [(member.name, drafts[member.key]) for member in members if member.key in drafts]

        def chance(source: str, depth: int, score: float) -> float:
            return self.known.chance(seq.seq_id, within(self.scope, source), depth, score)

        return union.merge(parts, budget, chance, self.method)

    def _joined(self, seq: DraftSequence, tree: Draft, drawing: Sequence[Member]) -> Draft:
        """The deterministic tree and the samples side by side. What has a law is verified whole, so that the planner
        will not cut this draft: the tree is cut to what pays here, which may look at nothing that was drawn."""
        drafts = self.following(seq).drafts
        drawn = [(member.name, drafts[member.key]) for member in drawing if len(drafts.get(member.key, EMPTY))]
        if not drawn:
            return with_probes(tree, drafts)
        if not self.fixed and len(tree):
            chances = self.chances(seq, tree)
            kept = worth_of(self.known, chances, 1).length
            tree = tree.keep(sorted(sorted(range(len(tree)), key=lambda node: -chances[node])[:kept]))
        own = [("", replace(tree, source=""))] if len(tree) else []
        return with_probes(union.join([*own, *drawn], self.method), drafts)


def _limits(
    sequences: Sequence[DraftSequence], budgets: Sequence[int], num_drawing: int, choosing: bool
) -> dict[int, int]:
    """Nodes of the deterministic tree: an equal share of the budget and what does not divide."""
    parts = num_drawing + 1
    return {
        seq.seq_id: budget - num_drawing * (budget // parts) if choosing else 0
        for seq, budget in zip(sequences, budgets, strict=True)
    }


def _shares(
    sequences: Sequence[DraftSequence], budgets: Sequence[int], trees: Sequence[Draft], place: int, count: int
) -> dict[int, int]:
    """Samples of number ``place`` of ``count`` members: an equal share of what the deterministic tree left."""
    return {
        seq.seq_id: (budget - len(tree) + count - 1 - place) // count
        for seq, budget, tree in zip(sequences, budgets, trees, strict=True)
    }


def _by_depth(draft: Draft, chances: Sequence[float]) -> list[float]:
    """Conditional acceptance by depth along the likeliest path; ``chances``: path probabilities."""
    best: list[float] = []
    for node, depth in enumerate(draft.depths()):
        if depth > len(best):
            best.append(0.0)
        best[depth - 1] = max(best[depth - 1], chances[node])
    return [p / above if above > 0.0 else 0.0 for p, above in zip(best, [1.0, *best], strict=False)]


def build(config: SpeculativeConfig, context: DrafterContext) -> MergeDrafter:
    """The drafter of method ``merge``."""
    return MergeDrafter(config.method, build_members(config, context), context)
