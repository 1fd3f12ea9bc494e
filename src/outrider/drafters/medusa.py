"""Medusa (arXiv 2401.10774) and Hydra (arXiv 2402.05109): a head a position over the target's last hidden state.

All that a draft needs of the past is that state at the token before the root, so there is no cache. Medusa's heads are
blind to what is drafted: the candidates of a level are the same below every node, and one row stands for all. Hydra's
see the tokens of a node's path; Hydra++'s have a layer before them that reads the whole text, and its cache.

Medusa-2 is the same heads on a target that was trained with them (`outrider train medusa --joint`): another model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.config import SpeculativeConfig
from outrider.drafters.base import Committed, Drafter, DraftSequence, HeadSource, Needs
from outrider.drafters.features import Features
from outrider.drafters.levels import NEVER, LevelDrafter, LevelGrowth, Stops, stops_of
from outrider.drafters.registry import DrafterContext
from outrider.drafters.trees import Shape, shape_of
from outrider.errors import ConfigError
from outrider.heads.prefix import PrefixCache
from outrider.heads.stack import StackDecoder
from outrider.target.costs import CostCurve, measure


@dataclass(slots=True)
class StackGrowth(LevelGrowth):
    """``seen`` [width]: what a node's row looks at, by node; -1 is the root."""

    seen: dict[int, Tensor] = field(default_factory=dict)


class MedusaDrafter(LevelDrafter[StackGrowth]):
    """Drafts with heads that do not see the tokens of the draft."""

    method = "medusa"

    def __init__(self, source: HeadSource, shape: Shape, stops: Stops = NEVER) -> None:
        assert isinstance(source.head, StackDecoder)
        self.head, self._target = source.head, source.target
        self.support = self.head.target_ids
        self.needs = Needs(hidden_layers=self.head.config.hidden_layers)
        self._grow_by(shape, stops, stack_curve(self.head))
        heads = self.head.config.num_heads
        self.max_levels = heads if self.max_levels is None else min(heads, self.max_levels)
        self._features: dict[int, Features] = {}

    @property
    def draft_temperature(self) -> float:
        """The head's own."""
        return self.head.config.draft_temperature

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """Keep the feature of the token before the root."""
        self._features[seq.seq_id] = Features(self._target, self.head.config, None if hidden is None else hidden[-1:])

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Keep the feature of the token before the new root."""
        if committed.hidden is not None:
            self.begin(seq, committed.hidden)

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """What is behind the new root is unknown until the next step."""
        self._features.pop(seq.seq_id, None)

    def release(self, seq: DraftSequence) -> None:
        """Forget the sequence."""
        self._features.pop(seq.seq_id, None)

    def close(self) -> None:
        """Forget all."""
        self._features.clear()

    def _start(self, seq: DraftSequence, budget: int) -> StackGrowth | None:
        feature = self._feature(seq) if budget > 0 else None
        if feature is None:
            return None
        assert self.max_levels is not None
        growth = StackGrowth(budget, min(self.max_levels, self.shape.levels(budget)), seq=seq)
        growth.seen[-1] = feature
        self.shape.start(growth)
        return growth

    def _feature(self, seq: DraftSequence) -> Tensor | None:
        """[hidden] of the token before the root, where it is known."""
        known = self._features.get(seq.seq_id)
        return None if known is None or not len(known) else known.rows()[0]

    def _expand(self, live: Sequence[StackGrowth]) -> dict[int, Tensor]:
        """One forward of the level's head over all that its rows look at."""
        level = len(live[0].path(live[0].frontier[0]))
        inputs = [self._inputs(growth) for growth in live]
        rows = torch.cat(inputs)
        logits = self._timed(len(rows), len(live), lambda: self.head.forward(level, rows))
        parts = torch.split(logits, [len(each) for each in inputs])
        return {
            growth.seq.seq_id: part.expand(len(growth.frontier), -1) for growth, part in zip(live, parts, strict=True)
        }

    def _inputs(self, growth: StackGrowth) -> Tensor:
        """[1 or frontier, width]."""
        return growth.seen[-1][None]


class HydraDrafter(MedusaDrafter):
    """Drafts with heads that see the tokens of a node's path."""

    method = "hydra"

    def _inputs(self, growth: StackGrowth) -> Tensor:
        """The embedding of a node's token before what its parent looked at; the root's before the feature."""
        tokens = [growth.seq.token_ids[-1]] if growth.frontier == [-1] else [growth.tokens[n] for n in growth.frontier]
        above = [-1 if node < 0 else growth.parents[node] for node in growth.frontier]
        seen = torch.stack([growth.seen[node] for node in above])
        rows = torch.cat((self._target.embed(tokens), seen), dim=1)
        growth.seen.update(zip(growth.frontier, rows, strict=True))
        return rows


class HydraPlusDrafter(HydraDrafter):
    """Drafts with Hydra's heads behind a layer that reads the features of the whole text."""

    method = "hydra_plus"

    def __init__(self, source: HeadSource, shape: Shape, stops: Stops = NEVER) -> None:
        super().__init__(source, shape, stops)
        self._caches: dict[int, PrefixCache] = {}

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """Keep the prompt's features."""
        self._features[seq.seq_id] = Features(self._target, self.head.config, hidden)
        self._caches[seq.seq_id] = PrefixCache()

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Take down the features of what was committed; the next proposal reads them."""
        if committed.hidden is not None and seq.seq_id in self._features:
            self._features[seq.seq_id].add(committed.hidden)

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """Forget what lies behind ``length`` tokens."""
        if seq.seq_id in self._features:
            self._features[seq.seq_id].cut(max(0, length - 1))
            self._caches[seq.seq_id].cut(max(0, length - 1))

    def release(self, seq: DraftSequence) -> None:
        """Forget the sequence."""
        super().release(seq)
        self._caches.pop(seq.seq_id, None)

    def close(self) -> None:
        """Forget all."""
        super().close()
        self._caches.clear()

    def _feature(self, seq: DraftSequence) -> Tensor | None:
        """The layer's output at the token before the root, where all features up to it are known."""
        known = self._features.get(seq.seq_id)
        if known is None or not len(known) or len(known) != len(seq.token_ids) - 1:
            return None
        cache, prefix = self._caches[seq.seq_id], self.head.prefix
        assert prefix is not None
        if len(cache) < len(known):
            prefix.extend(cache, known.rows()[len(cache) :].float())
        return cache.outputs.all()[-1]


_DRAFTERS = {kind.method: kind for kind in (MedusaDrafter, HydraDrafter, HydraPlusDrafter)}


def stack_curve(head: StackDecoder) -> CostCurve:
    """Seconds of a forward of so many rows of a middle head."""
    step = head.config.num_heads // 2

    def forward(rows: int) -> None:
        head.forward(step, torch.zeros(rows, head.widths[step], device=head.device))

    return measure(forward, (1, 2, 4, 8, 16, 32), limit=1.0)


def build(config: SpeculativeConfig, context: DrafterContext) -> Drafter:
    """The drafter of a config; the engine loads the heads and has compared them with the target."""
    if context.load_head is None:
        raise ConfigError(f"method {config.method} needs an engine that can load heads")
    return _DRAFTERS[config.method](context.load_head(config), shape_of(config), stops_of(config))
