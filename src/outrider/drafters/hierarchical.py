"""A drafter that is an engine of its own: a middle model whose text an inner drafter speeds up.

Source: TriForce, arXiv 2404.11912; CS Drafting, arXiv 2312.11462. The inner engine is lossless, so that its tokens
follow the middle model's law, which is the one handed up; the inner drafter's law is nowhere seen. Under a rule with
shared noise the inner engine draws with the target's noise, and the draft is, token by token, the chain that
``draft_model`` proposes. Under a classical rule it draws with noise of this step alone: the tokens are samples of the
middle model's law, independent of the target's draws.

What the inner engine wrote beyond the draft is kept for the next step where the noise and the target's tokens are the
same; all else is rolled back when the next draft is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from outrider.cache.pool import BlockPool
from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft, Iid, Law
from outrider.drafters.base import Drafter, DraftNoise, DraftSequence
from outrider.drafters.registry import DrafterContext
from outrider.drafters.sampling import children
from outrider.errors import CacheError, ConfigError

_MEMORY = 64.0  # inner steps over which their cost and yield are averaged


class InnerLoop(Protocol):
    """An engine over the middle model that writes on behind the tokens of a ``DraftSequence``."""

    @property
    def pool(self) -> BlockPool:
        """The blocks of the middle model's cache."""
        ...

    @property
    def max_model_len(self) -> int:
        """Tokens behind which the middle model can still write one."""
        ...

    def begin(self, seq: DraftSequence) -> None:
        """Compute the tokens of ``seq`` but its root. Raises CacheError when there is no room now."""
        ...

    def follow(self, seq: DraftSequence, key: int, wanted: int) -> int:
        """Make ready to write up to ``wanted`` tokens behind ``seq`` with noise ``key``; what was written before and is
        not what those tokens and that noise give is rolled back. Returns how many tokens are written already.
        Raises CacheError, with nothing written, when there is no room now."""
        ...

    def step(self, sequences: Sequence[DraftSequence]) -> float:
        """One step for ``sequences`` together. Returns its seconds by the measured cost curves, without what catches up
        with the target's tokens. Raises what failed."""
        ...

    def written(self, seq: DraftSequence) -> list[tuple[int, Tensor]]:
        """The tokens that the latest steps wrote, each with the processed scores [vocab] that it was drawn from."""
        ...

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """``seq`` was cut to ``length`` tokens: roll back to them. Runs no forward."""
        ...

    def release(self, seq: DraftSequence) -> None:
        """Drop the state of ``seq``; nothing happens when there is none."""
        ...

    def plain_seconds(self, num_sequences: int) -> float:
        """Seconds of a step of the middle model without an inner draft."""
        ...

    def kv_pools(self) -> dict[str, BlockPool]:
        """The caches of the middle model and of the inner drafter, by name."""
        ...

    def close(self) -> None:
        """Drop all states."""
        ...


@dataclass(slots=True)
class _Token:
    """A token that the inner engine wrote, its chance under the middle model, and its law where a rule looks at it."""

    token: int
    chance: float
    law: Law | None


@dataclass(slots=True)
class _Growth:
    """A draft while it grows. It has ``wanted`` tokens at most and ends where their joint chance falls below ``floor``.

    With shared noise it may hold what was written beyond that as well: the planner prunes it. A sampled one ends after
    the token that falls below, whatever was written with it.
    """

    seq: DraftSequence
    wanted: int
    floor: float
    shared: bool
    ahead: list[_Token]  # all that is written behind the sequence's root
    size: int = 0  # tokens of it that belong to the draft
    reach: float = 1.0

    @property
    def done(self) -> bool:
        """No more tokens are needed."""
        while self.size < min(self.wanted, len(self.ahead)) and (self.shared or self.reach >= self.floor):
            self.reach *= self.ahead[self.size].chance
            self.size += 1
        return self.size >= self.wanted or self.reach < self.floor

    def draft(self, noise: DraftNoise, source: str) -> Draft:
        """The finished chain."""
        nodes = self.ahead[: self.size]
        if not nodes:
            return EMPTY
        return Draft(
            tokens=[node.token for node in nodes],
            laws=None if noise.shared else [node.law for node in nodes if node.law is not None],
            scores=[node.chance for node in nodes],
            source=source,
        )


@dataclass(slots=True)
class _Pace:
    """What inner steps cost and bring: ``cost`` in plain steps of the middle model, ``tokens`` for a sequence. Both are
    one until steps were measured."""

    cost: float = 1.0
    tokens: float = 1.0
    count: float = 4.0

    def add(self, cost: float, tokens: float) -> None:
        """Learn from one inner step."""
        self.count = min(_MEMORY, self.count + 1.0)
        self.cost += (cost - self.cost) / self.count
        self.tokens += (tokens - self.tokens) / self.count


class Hierarchical(Drafter):
    """Drafts with the text of an inner engine."""

    method = "hierarchical"

    def __init__(self, inner: InnerLoop) -> None:
        self.inner = inner
        self._states: dict[int, list[_Token]] = {}  # what is written behind each sequence's root, at the latest draft
        self._pace = _Pace()

    @property
    def pool(self) -> BlockPool:
        """The blocks of the middle model's cache."""
        return self.inner.pool

    def seconds(self, num_sequences: int, num_tokens: int) -> float:
        """Time of the inner steps that write ``num_tokens`` for each sequence, at the pace of the latest ones.

        It is counted by the cost curves, as the planner counts the target's: a busy machine slows both alike.
        """
        if num_tokens < 1:
            return 0.0
        steps = 1.0 + (num_tokens - 1) / self._pace.tokens
        return steps * self._pace.cost * self.inner.plain_seconds(num_sequences)

    def more_seconds(self, num_sequences: int) -> float:
        """Time of an inner step, shared by the tokens that it brings."""
        return self._pace.cost / self._pace.tokens * self.inner.plain_seconds(num_sequences)

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """Compute the prompt with the middle model, and let the inner drafter meet it."""
        if len(seq.token_ids) <= self.inner.max_model_len:
            with suppress(CacheError):  # no room now: propose tries again
                self.inner.begin(seq)

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """Step the inner engine over all sequences until each has its tokens."""
        try:
            grown = [self._start(seq, budget, noise) for seq, budget in zip(sequences, budgets, strict=True)]
            self._grow([growth for growth in grown if growth is not None], noise)
        except Exception:
            for seq in sequences:  # where each of them stands is not known: those that are asked again begin anew
                self.release(seq)
            raise
        return [EMPTY if growth is None else growth.draft(noise, self.method) for growth in grown]

    def _start(self, seq: DraftSequence, budget: int, noise: DraftNoise) -> _Growth | None:
        """A draft ready to grow, or None when there is no budget, no context left, or no room in the cache now."""
        wanted = min(budget, self.inner.max_model_len + 1 - len(seq.token_ids))
        if wanted < 1:
            return None
        ahead = self._states.setdefault(seq.seq_id, [])
        try:
            known = self.inner.follow(seq, noise.inner_key(seq), wanted)
        except CacheError:
            ahead.clear()
            return None
        del ahead[: len(ahead) - known]
        return _Growth(seq, wanted, self.confidence_floor, noise.shared, ahead)

    def _grow(self, grown: Sequence[_Growth], noise: DraftNoise) -> None:
        while live := [growth for growth in grown if not growth.done]:
            seconds, tokens = self.inner.step([growth.seq for growth in live]), 0
            for growth in live:
                written = self.inner.written(growth.seq)
                for token, scores in written:
                    position = len(growth.seq.token_ids) + len(growth.ahead)
                    growth.ahead.append(_token(token, scores, growth.seq, position, noise))
                tokens += len(written)
            self._pace.add(seconds / self.inner.plain_seconds(len(live)), tokens / len(live))

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """Roll the inner engine back; what is written behind the cut is found gone by the next draft."""
        self.inner.truncate(seq, length)

    def release(self, seq: DraftSequence) -> None:
        """Free the sequence's blocks; the inner drafter lets go of what the target made of its text."""
        self._states.pop(seq.seq_id, None)
        self.inner.release(seq)

    def kv_pools(self) -> dict[str, BlockPool]:
        """Those of the inner engine."""
        return self.inner.kv_pools()

    def close(self) -> None:
        """Free everything, the inner drafter's stores as well."""
        self._states.clear()
        self.inner.close()


def _token(token: int, scores: Tensor, seq: DraftSequence, position: int, noise: DraftNoise) -> _Token:
    if noise.shared:
        return _Token(token, children(noise, seq, scores, position, 1)[0].chance, None)
    if seq.pipeline.greedy:
        q = torch.zeros(scores.shape, dtype=torch.float64)
        q[token] = 1.0
        return _Token(token, 1.0, Iid(q))
    law = Iid(torch.softmax(scores.double(), 0))
    return _Token(token, float(law.q[token]), law)


def build(config: SpeculativeConfig, context: DrafterContext) -> Hierarchical:
    """The drafter of method ``hierarchical``; the engine makes the inner loop."""
    if context.inner_loop is None:
        raise ConfigError("method hierarchical needs an engine that can load models")
    return Hierarchical(context.inner_loop(config))
