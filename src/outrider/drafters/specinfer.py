"""SpecInfer: several draft models, whose drafts are joined in one token tree (arXiv 2305.09781).

With shared noise edges are delta, so equal prefixes of two models are one path. With fresh noise every model draws from
a stream of its own, and its nodes stay its own, with its own law: a token that two models draw stands twice, since
leaving a sampled sibling out would make the law of those that stay a lie. The budget is shared out before anything is
drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from outrider.cache.pool import BlockPool
from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters import draft_model, union
from outrider.drafters.base import Committed, Drafter, DraftNoise, DraftSequence
from outrider.drafters.registry import DrafterContext
from outrider.drafters.sharing import OwnNoise


class SpecInfer(Drafter):
    """Drafts with every one of ``members``, which have one tree shape."""

    method = "specinfer"

    def __init__(self, members: Sequence[Drafter]) -> None:
        self.members = members
        self.max_levels = members[0].max_levels
        self._names = [f"model {number}" for number in range(1, len(members) + 1)]

    def seconds(self, num_sequences: int, num_tokens: int) -> float:
        """The models draft one after the other."""
        shares = _shares(num_tokens, len(self.members))
        return sum(member.seconds(num_sequences, share) for member, share in zip(self.members, shares, strict=True))

    def nodes(self, levels: int) -> int:
        """Those of all models; equal prefixes may leave less."""
        return sum(member.nodes(levels) for member in self.members)

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """Every model meets the sequence."""
        for member in self.members:
            member.begin(seq, hidden)

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """The drafts of all models, joined."""
        shares = [_shares(budget, len(self.members)) for budget in budgets]
        drafts = []
        for index, member in enumerate(self.members):
            member.stop_below(self.confidence_floor)
            own = noise if noise.shared else OwnNoise(noise, index, len(self.members))
            drafts.append(member.propose(sequences, [share[index] for share in shares], own))
        join = merged if noise.shared else side_by_side
        return [join(of_one, self.method, self._names) for of_one in zip(*drafts, strict=True)]

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Every model keeps what it can use."""
        for member in self.members:
            member.observe(seq, committed)

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """Every model rolls back."""
        for member in self.members:
            member.truncate(seq, length)

    def release(self, seq: DraftSequence) -> None:
        """Every model lets go of the sequence."""
        for member in self.members:
            member.release(seq)

    def kv_pools(self) -> dict[str, BlockPool]:
        """Those of all models."""
        return {
            name: pool
            for name, member in zip(self._names, self.members, strict=True)
            for pool in member.kv_pools().values()
        }

    def close(self) -> None:
        """Free what the models hold."""
        for member in self.members:
            member.close()


def merged(drafts: Sequence[Draft], source: str, names: Sequence[str]) -> Draft:
    """The union of delta trees: equal prefixes are one path, and a node keeps the best score that it was given.

    ``sources`` of a node names all models that proposed it: what several agree on is accepted more often.
    """
    if len(drafts) == 1:
        return _renamed(drafts[0], source)
    nodes = union.trie(list(zip(names, drafts, strict=True)))
    if not nodes:
        return EMPTY
    parents = [node.parent for node in nodes]
    return Draft(
        tokens=[node.token for node in nodes],
        parents=None if parents == list(range(-1, len(parents) - 1)) else parents,
        scores=[max(node.scores.values()) for node in nodes],
        source=source,
        sources=[", ".join(node.scores) for node in nodes],
    )


def side_by_side(drafts: Sequence[Draft], source: str, names: Sequence[str]) -> Draft:
    """All trees under one root, every node with its own law: the siblings of the first model are tried first."""
    if len(drafts) == 1:
        return _renamed(drafts[0], source)
    return union.join(list(zip(names, drafts, strict=True)), source)


def _renamed(draft: Draft, source: str) -> Draft:
    return replace(draft, source=source) if len(draft) else draft


def _shares(budget: int, count: int) -> list[int]:
    """``budget`` in ``count`` parts, the larger ones first."""
    return [budget // count + (index < budget % count) for index in range(count)]


def build(config: SpeculativeConfig, context: DrafterContext) -> SpecInfer:
    """The drafter of method ``specinfer``."""
    return SpecInfer([draft_model.build(member, context) for member in config.members])
