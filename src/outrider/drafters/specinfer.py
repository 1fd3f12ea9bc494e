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

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft, Law
from outrider.drafters import draft_model
from outrider.drafters.base import Committed, Drafter, DraftNoise, DraftSequence
from outrider.drafters.registry import DrafterContext


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
            member.confidence_floor = self.confidence_floor
            own = noise if noise.shared else _OwnNoise(noise, index, len(self.members))
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

    def close(self) -> None:
        """Free what the models hold."""
        for member in self.members:
            member.close()


class _OwnNoise:
    """The fresh noise of one of several models: no number is drawn for two of them."""

    shared = False

    def __init__(self, noise: DraftNoise, index: int, count: int) -> None:
        self.merge_paths = noise.merge_paths
        self._noise, self._index, self._count = noise, index, count

    def candidates(self, seq: DraftSequence, scores: Tensor, position: int, count: int) -> list[int]:
        """As the noise it is made of."""
        return self._noise.candidates(seq, scores, position, count)

    def perturbed(self, seq: DraftSequence, scores: Tensor, position: int, tokens: Sequence[int]) -> Tensor:
        """As the noise it is made of."""
        return self._noise.perturbed(seq, scores, position, tokens)

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        """One draw that no other model shares."""
        return self._noise.sample(seq, weights, position, index * self._count + self._index)

    def inner_key(self, seq: DraftSequence) -> int:
        """A key that no other model shares."""
        return self._noise.inner_key(seq) ^ self._index


def merged(drafts: Sequence[Draft], source: str, names: Sequence[str]) -> Draft:
    """The union of delta trees: equal prefixes are one path, and a node keeps the best score that it was given.

    ``sources`` of a node names all models that proposed it: what several agree on is accepted more often.
    """
    if len(drafts) == 1:
        return _renamed(drafts[0], source)
    known: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    authors: list[str] = []
    for draft, name in zip(drafts, names, strict=True):
        place = {-1: -1}
        for node, token in enumerate(draft.tokens):
            key = (place[draft.parent(node)], token)
            score = draft.scores[node] if draft.scores is not None else 0.5
            if key in known:
                place[node] = same = known[key]
                scores[same] = max(scores[same], score)
                authors[same] += f", {name}"
                continue
            place[node] = known[key] = len(tokens)
            tokens.append(token)
            parents.append(key[0])
            scores.append(score)
            authors.append(name)
    return _tree(tokens, parents, None, scores, source, authors)


def side_by_side(drafts: Sequence[Draft], source: str, names: Sequence[str]) -> Draft:
    """All trees under one root, every node with its own law: the siblings of the first model are tried first."""
    if len(drafts) == 1:
        return _renamed(drafts[0], source)
    tokens: list[int] = []
    parents: list[int] = []
    laws: list[Law] = []
    scores: list[float] = []
    authors: list[str] = []
    for draft, name in zip(drafts, names, strict=True):
        first = len(tokens)
        for node, token in enumerate(draft.tokens):
            above = draft.parent(node)
            tokens.append(token)
            parents.append(above if above < 0 else first + above)
            laws.append(draft.law(node))
            scores.append(draft.scores[node] if draft.scores is not None else 0.5)
            authors.append(name)
    return _tree(tokens, parents, laws, scores, source, authors)


def _tree(
    tokens: list[int],
    parents: list[int],
    laws: list[Law] | None,
    scores: list[float],
    source: str,
    authors: list[str],
) -> Draft:
    if not tokens:
        return EMPTY
    chain = all(parent == node - 1 for node, parent in enumerate(parents))
    return Draft(tokens, None if chain else parents, laws, scores=scores, source=source, sources=authors)


def _renamed(draft: Draft, source: str) -> Draft:
    return replace(draft, source=source) if len(draft) else draft


def _shares(budget: int, count: int) -> list[int]:
    """``budget`` in ``count`` parts, the larger ones first."""
    return [budget // count + (index < budget % count) for index in range(count)]


def build(config: SpeculativeConfig, context: DrafterContext) -> SpecInfer:
    """The drafter of method ``specinfer``."""
    return SpecInfer([draft_model.build(member, context) for member in config.members])
