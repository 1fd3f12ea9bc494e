"""The draft: a token tree in which every edge carries the law its token was drawn from.

The root is the last emitted token and is *not* part of a draft; ``parents[i] == -1`` makes node ``i`` a child of the
root. Nodes are in topological order (a parent stands before its children) and the order of siblings is the order in
which a classical verifier tries them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from outrider.errors import ContractError


@dataclass(frozen=True, slots=True)
class Delta:
    """The token was chosen deterministically: a point mass. Such nodes may be pruned freely."""


@dataclass(frozen=True, slots=True, eq=False)
class Iid:
    """The token is an independent sample of ``q`` [vocab], a processed law that sums to one."""

    q: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class WithoutReplacement:
    """The token was drawn from ``q`` [vocab] after the earlier siblings had been zeroed and the rest renormalised.

    When the earlier siblings exhaust the support of ``q`` the law is uniform over the tokens not drawn yet.
    """

    q: Tensor


Law: TypeAlias = Delta | Iid | WithoutReplacement
DELTA = Delta()


@dataclass(frozen=True, slots=True)
class Probes:
    """Rows that are computed in the same forward as the tree but are never candidates (Lookahead's window).

    ``tokens[i]`` sees the context, the root, and its ancestors among the probes (``parents[i]``, -1 = the root).
    """

    tokens: Sequence[int]
    parents: Sequence[int]


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens for one sequence. An empty draft is legal and makes the step a plain one.

    ``parents``: None means a chain. ``laws``: None means every edge is ``Delta``. ``multiplicity``: how many of the K
    paths run through a node (SpecTr); None means one. ``scores[i]``: the drafter's own estimate in [0, 1] of
    P(node i accepted | its parent accepted), for the planner only. ``source``: the drafter that made it; ``sources``:
    the one behind each node, where several had a part in it; ``name:part`` are nodes that ``name`` adds at no cost and
    that are calibrated apart.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] | None = None
    laws: Sequence[Law] | None = None
    multiplicity: Sequence[int] | None = None
    scores: Sequence[float] | None = None
    probes: Probes | None = None
    source: str = ""
    sources: Sequence[str] | None = None
    info: dict[str, object] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def parent(self, node: int) -> int:
        """The node above ``node``; -1 is the root."""
        return node - 1 if self.parents is None else self.parents[node]

    def law(self, node: int) -> Law:
        """The law of the edge that leads to ``node``."""
        return DELTA if self.laws is None else self.laws[node]

    def source_of(self, node: int) -> str:
        """The drafter behind ``node``."""
        return self.source if self.sources is None else self.sources[node]

    @property
    def is_chain(self) -> bool:
        """True when no node has a sibling."""
        return self.parents is None or all(parent == node - 1 for node, parent in enumerate(self.parents))

    @property
    def all_delta(self) -> bool:
        """True when every edge is deterministic."""
        return self.laws is None or all(isinstance(law, Delta) for law in self.laws)

    def children(self) -> list[list[int]]:
        """``children()[node + 1]``: the children of ``node`` in trial order; index 0 belongs to the root."""
        out: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node in range(len(self.tokens)):
            out[self.parent(node) + 1].append(node)
        return out

    def path(self, node: int) -> list[int]:
        """Nodes from the child of the root down to ``node``; empty for the root."""
        out = []
        while node >= 0:
            out.append(node)
            node = self.parent(node)
        return out[::-1]

    def follow(self, tokens: Sequence[int]) -> list[int]:
        """Nodes that ``tokens`` lead along from the root, as far as the draft has them."""
        children, path = self.children(), [-1]
        for token in tokens:
            node = next((child for child in children[path[-1] + 1] if self.tokens[child] == token), None)
            if node is None:
                break
            path.append(node)
        return path[1:]

    def depths(self) -> list[int]:
        """Depth of every node; a child of the root has depth 1."""
        out: list[int] = []
        for node in range(len(self.tokens)):
            parent = self.parent(node)
            out.append(1 if parent < 0 else out[parent] + 1)
        return out

    def keep(self, nodes: Sequence[int]) -> Draft:
        """The draft with only ``nodes`` (ascending, closed under parents); legal for delta edges at any time.

        Raises ContractError when a kept node has lost its parent.
        """
        index = {node: new for new, node in enumerate(nodes)}
        index[-1] = -1
        try:
            parents = [index[self.parent(node)] for node in nodes]
        except KeyError as error:
            raise ContractError(f"draft of {self.source!r}: node kept without its parent {error}") from None
        chain = all(parent == node - 1 for node, parent in enumerate(parents))
        return Draft(
            tokens=[self.tokens[n] for n in nodes],
            parents=None if chain else parents,
            laws=None if self.laws is None else [self.laws[n] for n in nodes],
            multiplicity=None if self.multiplicity is None else [self.multiplicity[n] for n in nodes],
            scores=None if self.scores is None else [self.scores[n] for n in nodes],
            probes=self.probes,
            source=self.source,
            sources=None if self.sources is None else [self.sources[n] for n in nodes],
            info=self.info,
        )

    def check(self, vocab_size: int, budget: int) -> None:
        """Raise ContractError when the draft breaks the contract of a drafter."""
        size = len(self.tokens)
        if size > budget:
            raise ContractError(f"drafter {self.source!r} proposed {size} tokens for a budget of {budget}")
        for name in ("parents", "laws", "multiplicity", "scores", "sources"):
            value = getattr(self, name)
            if value is not None and len(value) != size:
                raise ContractError(f"drafter {self.source!r}: {len(value)} {name} for {size} tokens")
        for node, token in enumerate(self.tokens):
            if not 0 <= token < vocab_size:
                raise ContractError(f"drafter {self.source!r}: token id {token} outside the vocabulary of {vocab_size}")
            if not -1 <= self.parent(node) < node:
                raise ContractError(f"drafter {self.source!r}: node {node} stands before parent {self.parent(node)}")


EMPTY = Draft()
