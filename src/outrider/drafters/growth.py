"""From continuations of a context to a draft: a trie that is only built where the draft goes, best path first.

Source: SuffixDecoding, arXiv 2411.04975. At each node count(child) / count(node) over the continuations decides, where
count(node) leaves out continuations that end there. A path whose product of frequencies is under ``min_prob`` ends,
and so does one that reached an end-of-sequence token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from outrider.core.draft import Draft
from outrider.drafters.lookup import acceptance_prior

_MAX_CHILDREN = 8


@dataclass(frozen=True, slots=True)
class GrowthRule:
    """What a draft may become: a tree, or a chain of the most frequent children."""

    min_prob: float
    tree: bool
    eos_ids: frozenset[int]


class _Node(NamedTuple):
    """A candidate of the frontier. ``alive``: the continuations that hold its path; ``path``: product of scores."""

    token: int
    parent: int
    depth: int  # a child of the root has depth 1
    frequency: float  # product along the path
    score: float
    path: float
    alive: Sequence[Sequence[int]]


def grow(
    continuations: Sequence[Sequence[int]],
    context: int,
    budget: int,
    rule: GrowthRule,
    source: str,
    floor: float = 0.0,
) -> tuple[Draft, float]:
    """A draft of at most ``budget`` nodes and its expected number of accepted tokens.

    ``continuations``: what followed each occurrence, latest first, a negative token being the end; ``context``: the
    number of tokens that all occurrences share with the sequence; ``floor``: a path less likely than this ends.
    """
    root = _Node(-1, -1, 0, 1.0, 1.0, 1.0, continuations)
    chosen: list[_Node] = []
    order = count()  # settles ties: the earlier pushed first
    frontier: list[tuple[float, int, _Node]] = []
    parent = root
    while True:
        if parent.token not in rule.eos_ids:
            for child in _children(parent, len(chosen) - 1, context, rule):
                if child.path >= floor:
                    heappush(frontier, (-child.path, next(order), child))
        if not frontier or len(chosen) == budget:
            break
        parent = heappop(frontier)[2]
        chosen.append(parent)
    draft = Draft(
        tokens=[node.token for node in chosen],
        parents=[node.parent for node in chosen] if rule.tree else None,
        scores=[node.score for node in chosen],
        source=source,
    )
    return draft, sum(node.path for node in chosen)


def _children(parent: _Node, index: int, context: int, rule: GrowthRule) -> list[_Node]:
    """Children of ``parent``, which is node ``index`` of the draft; most frequent first, ties by recency."""
    depth = parent.depth
    following = [rest for rest in parent.alive if depth < len(rest) and rest[depth] >= 0]
    if len(following) == 1:
        score = acceptance_prior(context + depth, 0, 0)
        token = following[0][depth]
        return [_Node(token, index, depth + 1, parent.frequency, score, parent.path * score, following)]
    groups: dict[int, list[Sequence[int]]] = {}
    for rest in following:
        groups.setdefault(rest[depth], []).append(rest)
    ranked = sorted(groups.items(), key=lambda group: len(group[1]), reverse=True)
    children = []
    for token, alive in ranked[: _MAX_CHILDREN if rule.tree else 1]:
        frequency = parent.frequency * len(alive) / len(following)
        if frequency < rule.min_prob:
            break
        score = acceptance_prior(context + depth, len(alive) - 1, len(following) - 1)
        children.append(_Node(token, index, depth + 1, frequency, score, parent.path * score, alive))
    return children
