"""Chain drafts by the target itself, made cheaper: what layer skipping and quantised self-drafting share.

The rows of a draft read the target's own cache of the committed tokens and write into the slots that the verify step
is about to overwrite, so neither a second cache nor a prompt's second forward is needed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from outrider.core.draft import EMPTY, Draft, Law
from outrider.drafters.base import Drafter, DraftNoise, DraftSequence, TargetHandle
from outrider.drafters.registry import DrafterContext
from outrider.drafters.sampling import children
from outrider.errors import ConfigError
from outrider.target.batch import Span
from outrider.target.costs import curve_of
from outrider.target.model import Target
from outrider.target.pace import LiveCurve


@dataclass(slots=True)
class _Chain:
    """A draft while it grows. ``slots``: of all positions of the sequence. ``depth``: tokens that it may have."""

    seq: DraftSequence
    slots: Tensor
    depth: int
    tokens: list[int] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    reach: float = 1.0  # product of scores

    def row(self) -> Span:
        """The row whose logits give the next token: the root, or the last drafted token."""
        token = self.tokens[-1] if self.tokens else self.seq.token_ids[-1]
        return Span([token], self.slots, len(self.seq.token_ids) - 1 + len(self.tokens), logits=[0])

    def draft(self, noise: DraftNoise, source: str) -> Draft:
        """The finished draft."""
        if not self.tokens:
            return EMPTY
        return Draft(
            self.tokens,
            laws=None if noise.shared else self.laws,
            multiplicity=[1] * len(self.tokens) if noise.merge_paths else None,
            scores=self.scores,
            source=source,
        )


class SelfDrafter(Drafter):
    """Drafts chains with ``model`` (the target or a copy of it) over the target's cache, one forward a token."""

    def __init__(self, target: TargetHandle, model: Target, eos_ids: frozenset[int], skip: bytes | None = None) -> None:
        self.target, self.model, self.skip = target, model, skip
        self._eos_ids = eos_ids
        self._curve = LiveCurve(curve_of(model, skip))

    def seconds(self, num_sequences: int, num_tokens: int) -> float:
        """Time of ``num_tokens`` forwards of one row for each sequence."""
        return num_tokens * self._curve(num_sequences)

    def stop_threshold(self, seq: DraftSequence) -> float:
        """A chain ends after a token that is less likely than this by the drafter's own law."""
        return 0.0

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """Grow all chains, one forward a token. A chain may only end after a token that is part of it."""
        chains = [self._start(seq, budget) for seq, budget in zip(sequences, budgets, strict=True)]
        live = [chain for chain in chains if chain is not None]
        while live:
            begin = time.perf_counter()
            logits = self.target.forward([chain.row() for chain in live], self.model, self.skip)
            self._curve.observe(len(live), time.perf_counter() - begin)
            for chain, row in zip(live, logits, strict=True):
                self._extend(chain, row, noise)
            live = [chain for chain in live if self._goes_on(chain)]
        return [EMPTY if chain is None else chain.draft(noise, self.method) for chain in chains]

    def _start(self, seq: DraftSequence, budget: int) -> _Chain | None:
        """A chain ready to grow, or None when there is no budget, no context left or no room in the cache now."""
        length = len(seq.token_ids)
        depth = min(budget, self.model.max_model_len - length)
        if depth < 1:
            return None
        slots = self.target.slots(seq, depth)
        depth = min(depth, len(slots) - length + 1)  # the last token of a chain is never computed
        return _Chain(seq, slots, depth) if depth > 0 else None

    def _extend(self, chain: _Chain, row: Tensor, noise: DraftNoise) -> None:
        """Draw the chain's next token from a raw row [vocab]."""
        seq = chain.seq
        history = seq.pipeline.needs_history
        output = seq.token_ids[seq.num_prompt_tokens :] if history else ()
        scores = seq.pipeline.process(row, output, chain.tokens if history else ())
        picked = children(noise, seq, scores, len(seq.token_ids) + len(chain.tokens), 1)
        if not picked:  # every token is masked
            chain.depth = len(chain.tokens)
            return
        chain.tokens.append(picked[0].token)
        chain.scores.append(picked[0].chance)
        chain.reach *= self.chance_of(seq.seq_id, len(chain.tokens), picked[0].chance)
        if picked[0].law is not None:
            chain.laws.append(picked[0].law)

    def _goes_on(self, chain: _Chain) -> bool:
        if len(chain.tokens) >= chain.depth or chain.tokens[-1] in self._eos_ids:
            return False
        return chain.reach >= self.confidence_floor and chain.scores[-1] >= self.stop_threshold(chain.seq)


def target_of(method: str, context: DrafterContext) -> TargetHandle:
    """The handle that the engine gives. Raises ConfigError where there is none."""
    if context.target is None:
        raise ConfigError(f"method {method} needs an engine that hands its target to drafters")
    return context.target
