"""Drafts that grow level by level: what model drafters and head drafters share.

Under a rule with shared noise a node's children are the top-k of log q + the target's noise (delta edges); under a
classical rule they are independent samples of q (arXiv 2211.17192, 2310.15141). How many are drawn at a node is fixed
before any of them is.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Drafter, DraftNoise, DraftSequence
from outrider.drafters.features import spread
from outrider.drafters.sampling import children, likeliest
from outrider.drafters.trees import Growth, Shape
from outrider.errors import NumericsError
from outrider.target.costs import CostCurve
from outrider.target.pace import LiveCurve

T = TypeVar("T")
G = TypeVar("G", bound="LevelGrowth")
_STEP, _OUTLIER = 0.1, 4.0  # share of a surprise that is taken over; what is so many times off was interrupted
_FEW = 8  # rows a sequence: a forward that drafts, as against one that catches up


@dataclass(frozen=True, slots=True)
class Stops:
    """When a path ends early. Both look at tokens that the draft has, so that no rule's law is bent.

    ``confidence``: a token less likely to be accepted than this is its path's last. ``rejection``: so is one behind
    which the drafter thinks it likelier than this that some token of the path is rejected (SpecDec++, arXiv
    2405.19715); None for never. Chances are the drafter's own estimates.
    """

    confidence: float = 0.0
    rejection: float | None = None

    @property
    def certainty(self) -> float:
        """The path probability below which ``rejection`` ends a path."""
        return 0.0 if self.rejection is None else 1.0 - self.rejection

    def goes_on(self, score: float, reach: float) -> bool:
        """Whether a token of probability ``score`` may have children; ``reach``: that of its whole path."""
        return score >= self.confidence and reach >= self.certainty


NEVER = Stops()


def stops_of(config: SpeculativeConfig) -> Stops:
    """Those that a config asks for."""
    return Stops(config.draft_confidence_threshold, config.draft_stop_rejection)


class _Beside:
    """Seconds that a level of one sequence takes beside its forward: what it reads, its children, Python."""

    def __init__(self) -> None:
        self.seconds = 0.0001

    def observe(self, num_levels: int, seconds: float) -> None:
        """So many levels of sequences took ``seconds`` without their forwards."""
        if num_levels:
            seen = min(max(seconds / num_levels, 0.0), _OUTLIER * self.seconds)
            self.seconds += _STEP * (seen - self.seconds)


@dataclass(slots=True)
class LevelGrowth(Growth):
    """A growing draft of one sequence."""

    seq: DraftSequence = field(kw_only=True)


class LevelDrafter(Drafter, Generic[G]):
    """Grows all drafts together, one forward a level. ``_start`` and ``_expand`` are what a method brings."""

    shape: Shape
    support: Tensor | None = None  # target ids that the rows of ``_expand`` are over, ascending; None: all of them

    @property
    def draft_temperature(self) -> float:
        """What ``_expand``'s logits are divided by where tokens are sampled."""
        return 1.0

    def _grow_by(self, shape: Shape, stops: Stops, curve: CostCurve) -> None:
        """What decides about a draft's form. ``curve``: seconds of a forward of so many rows."""
        self.shape, self._stops, self._curve = shape, stops, LiveCurve(curve)
        self._beside, self._forward_seconds = _Beside(), 0.0
        self.max_levels = shape.max_levels

    def seconds(self, num_sequences: int, num_tokens: int) -> float:
        """Time of the levels that draw ``num_tokens`` nodes for each sequence, one forward a level."""
        beside = num_sequences * self._beside.seconds
        return self.shape.seconds(num_tokens, lambda rows: self._curve(num_sequences * rows) + beside)

    def nodes(self, levels: int) -> int:
        """Nodes of the shape."""
        return self.shape.nodes(levels)

    @abstractmethod
    def _start(self, seq: DraftSequence, budget: int) -> G | None:
        """A draft ready to grow, its shape started; None when none can be drawn now."""

    @abstractmethod
    def _expand(self, live: Sequence[G]) -> dict[int, Tensor]:
        """One forward over all frontiers: raw logits [frontier, vocab] by sequence, or [frontier, support]."""

    def _run_on(self, growth: G, depth: int, noise: DraftNoise) -> int:
        """Draft all further levels at once, where a method can: how many; 0 where they are drafted one by one."""
        return 0

    def _settle(self, growth: G) -> None:
        """A draft is grown: forget what only its growth needed."""
        return None

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """Grow all drafts level by level, one forward a level."""
        begin, self._forward_seconds, num_levels = time.perf_counter(), 0.0, 0
        grown = [self._start(seq, budget) for seq, budget in zip(sequences, budgets, strict=True)]
        live = [growth for growth in grown if growth is not None]
        depth = 0
        while live:
            rows = self._expand(live)
            for growth in live:
                self._branch(growth, rows[growth.seq.seq_id], depth, noise)
            depth, num_levels = depth + 1, num_levels + len(live)
            live = [growth for growth in live if self._goes_on(growth, depth)]
            if len(live) == 1 and (run := self._run_on(live[0], depth, noise)):
                num_levels += run
                break
        for done in grown:
            if done is not None:
                self._settle(done)
        drafts = [EMPTY if growth is None else self._finish(growth, noise) for growth in grown]
        self._beside.observe(num_levels, time.perf_counter() - begin - self._forward_seconds)
        return drafts

    def _timed(self, num_rows: int, num_sequences: int, call: Callable[[], T]) -> T:
        """What ``call``, a forward of so many rows, returns; the cost curve learns how long it took."""
        begin = time.perf_counter()
        out = call()
        self._took(num_rows, num_sequences, time.perf_counter() - begin)
        return out

    def _took(self, num_rows: int, num_sequences: int, seconds: float, count: int = 1) -> None:
        """``count`` forwards of so many rows took ``seconds`` together."""
        self._forward_seconds += seconds
        if num_rows <= _FEW * num_sequences:
            self._curve.observe(num_rows, seconds / count)

    def _goes_on(self, growth: G, depth: int) -> bool:
        """Choose what is expanded next; False when the draft is finished."""
        open_ends = [n for n in growth.frontier if self._stops.goes_on(growth.scores[n], growth.reach[n])]
        growth.frontier = self.shape.frontier(growth, open_ends)
        if not growth.frontier or depth >= growth.levels or len(growth.tokens) >= self.shape.limit(growth.budget):
            return False
        return max(growth.reach[node] for node in growth.frontier) >= self.confidence_floor

    def _finish(self, growth: G, noise: DraftNoise) -> Draft:
        draft, kept = growth.draft(noise.merge_paths, self.method), self.shape.kept(growth)
        return draft if kept is None or len(kept) == len(draft) else draft.keep(kept)

    def _branch(self, growth: G, logits: Tensor, depth: int, noise: DraftNoise) -> None:
        """Give every frontier node its children, which are the next frontier."""
        greedy = growth.seq.pipeline.greedy
        if not greedy and self.draft_temperature != 1.0:
            logits = logits / self.draft_temperature
        if self.support is not None:
            if noise.shared and greedy and growth.seq.pipeline.plain:
                self._branch_greedily(growth, logits, depth, noise, self.support)
                return
            logits = spread(logits, self.support, growth.seq.pipeline.vocab_size)
        seq, frontier = growth.seq, growth.frontier
        output = seq.token_ids[seq.num_prompt_tokens :] if seq.pipeline.needs_history else ()
        first, drawn = len(growth.tokens), 0
        for node, row in zip(frontier, logits, strict=True):
            room = self.shape.limit(growth.budget) - len(growth.tokens)
            width = min(self.shape.width(growth, node, depth, noise.merge_paths), room)
            if width < 1:
                break
            path = [growth.tokens[n] for n in growth.path(node)] if seq.pipeline.needs_history else ()
            try:
                scores = seq.pipeline.process(row, output, path)
            except NumericsError:  # no token that the draft knows is allowed here
                continue
            position = len(seq.token_ids) + depth
            for rank, child in enumerate(children(noise, seq, scores, position, width, drawn)):
                place = self.shape.place(growth, node, rank)
                chance = self.chance_of(seq.seq_id, depth + 1, child.chance)
                growth.add(node, place, child.token, child.chance, child.law, child.num_paths, chance)
            drawn += width
        growth.frontier = list(range(first, len(growth.tokens)))

    def _branch_greedily(self, growth: G, logits: Tensor, depth: int, noise: DraftNoise, support: Tensor) -> None:
        """The same where children are the likeliest tokens: all rows at once, over the support alone."""
        widths, room = [], self.shape.limit(growth.budget) - len(growth.tokens)
        for node in growth.frontier:
            widths.append(max(0, min(self.shape.width(growth, node, depth, noise.merge_paths), room)))
            room -= widths[-1]
        first, frontier = len(growth.tokens), growth.frontier
        places, chances = likeliest(logits, max(1, *widths))
        rows = zip(frontier, widths, support[places].tolist(), chances.tolist(), strict=True)
        for node, width, tokens, likely in rows:
            for rank in range(width):
                growth.add(node, self.shape.place(growth, node, rank), tokens[rank], likely[rank], None, 1)
        growth.frontier = list(range(first, len(growth.tokens)))
