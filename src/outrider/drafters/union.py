"""Joining drafts under their shared root: pure functions over drafts, without drafters.

Delta drafts become one trie (arXiv 2603.27027): equal token paths are one node, so that no row is verified twice.
Drafts with laws are placed side by side, duplicates and all (arXiv 2305.09781): the law of a sampled sibling holds for
what was drawn, and a tree that drops or chooses among draws has another law.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.core.draft import DELTA, EMPTY, Draft, Iid, Law, WithoutReplacement
from outrider.core.verifiers.edges import without
from outrider.drafters.estimates import within

Chance = Callable[[str, int, float], float]  # (source, depth, score) -> P(accepted | parent accepted)


@dataclass(slots=True)
class _Node:
    token: int
    parent: int
    depth: int
    scores: dict[str, float]  # by the drafters that proposed it
    score: float = 0.0
    path: float = 0.0


def agree(scores: Sequence[float]) -> float:
    """Prior of a node that several drafters proposed: 1 - the product of their doubts (noisy or)."""
    return scores[0] if len(scores) == 1 else 1.0 - math.prod(1.0 - score for score in scores)


def merge(parts: Sequence[tuple[str, Draft]], budget: int, chance: Chance, source: str) -> Draft:
    """The trie of delta drafts, cut to the ``budget`` nodes of highest path probability.

    ``parts``: (name, draft); parts of one name count once, whatever they agree on. ``chance`` calibrates a node's
    score, its source being all names behind it, joined by ``+``. A node's score is ``agree`` of its drafters', scaled
    down where siblings' would sum to more than one.
    """
    nodes = _trie(parts)
    siblings: dict[int, float] = {}
    for node in nodes:
        node.score = agree(list(node.scores.values()))
        siblings[node.parent] = siblings.get(node.parent, 0.0) + node.score
    labels = ["+".join(node.scores) for node in nodes]
    for node, label in zip(nodes, labels, strict=True):
        node.score /= max(1.0, siblings[node.parent])
        above = 1.0 if node.parent < 0 else nodes[node.parent].path
        node.path = above * min(1.0, max(0.0, chance(label, node.depth, node.score)))
    order = range(len(nodes))
    if len(nodes) > budget:
        order = sorted(sorted(order, key=lambda i: -nodes[i].path)[:budget])  # type: ignore[assignment]
    place = {-1: -1, **{node: index for index, node in enumerate(order)}}
    parents = [place[nodes[i].parent] for i in order]
    if not parents:
        return EMPTY
    return Draft(
        tokens=[nodes[i].token for i in order],
        parents=None if parents == list(range(-1, len(parents) - 1)) else parents,
        scores=[nodes[i].score for i in order],
        source=source,
        sources=[labels[i] for i in order],
    )


def _trie(parts: Sequence[tuple[str, Draft]]) -> list[_Node]:
    """All nodes of all parts, equal paths once; parents first."""
    nodes: list[_Node] = []
    known: dict[tuple[int, int], int] = {}
    for name, draft in parts:
        places: list[int] = []
        for index, token in enumerate(draft.tokens):
            up = draft.parent(index)
            parent = places[up] if up >= 0 else -1
            at = known.setdefault((parent, token), len(nodes))
            if at == len(nodes):
                nodes.append(_Node(token, parent, 1 if parent < 0 else nodes[parent].depth + 1, {}))
            places.append(at)
            score = 0.5 if draft.scores is None else draft.scores[index]
            label = name if draft.sources is None else within(name, draft.sources[index])
            nodes[at].scores[label] = max(score, nodes[at].scores.get(label, 0.0))
    return nodes


def join(parts: Sequence[tuple[str, Draft]], source: str) -> Draft:
    """Drafts with laws side by side under one root: every node, law and duplicate is kept."""
    tokens: list[int] = []
    parents: list[int] = []
    laws: list[Law] = []
    scores: list[float] = []
    sources: list[str] = []
    for name, draft in parts:
        first = len(tokens)
        for node, token in enumerate(draft.tokens):
            parent = draft.parent(node)
            tokens.append(token)
            parents.append(parent + first if parent >= 0 else -1)
            laws.append(_freed(draft, node) if parent < 0 and first else draft.law(node))
            scores.append(0.5 if draft.scores is None else draft.scores[node])
            sources.append(name if draft.sources is None else within(name, draft.sources[node]))
    if not tokens:
        return EMPTY
    return Draft(
        tokens=tokens,
        parents=None if parents == list(range(-1, len(parents) - 1)) else parents,
        laws=None if all(law is DELTA for law in laws) else laws,
        scores=scores,
        source=source,
        sources=sources,
    )


def _freed(draft: Draft, node: int) -> Law:
    """The law of a child of the root behind another draft's: one without replacement avoided its own siblings only."""
    law = draft.law(node)
    if not isinstance(law, WithoutReplacement):
        return law
    return Iid(without(law.q, [draft.tokens[n] for n in draft.children()[0] if n < node]))
