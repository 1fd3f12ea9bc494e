"""Joining drafts under their shared root: pure functions over drafts, without drafters.

Delta drafts become one trie (arXiv 2603.27027): equal token paths are one node, so that no row is verified twice.
Drafts with laws are placed side by side, duplicates and all (arXiv 2305.09781): the law of a sampled sibling holds for
what was drawn, and a tree that drops or chooses among draws has another law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from outrider.core.draft import DELTA, EMPTY, Draft, Iid, Law, WithoutReplacement
from outrider.core.verifiers.edges import without
from outrider.drafters.estimates import named

Chance = Callable[[str, int, float], float]  # (source, depth, score) -> P(accepted | parent accepted)


@dataclass(slots=True)
class Node:
    token: int
    parent: int
    depth: int
    scores: dict[str, float]  # by the drafters that proposed it
    score: float = 0.0


def merge(parts: Sequence[tuple[str, Draft]], budget: int, chance: Chance, source: str) -> Draft:
    """The trie of delta drafts, cut to the ``budget`` nodes of highest path probability.

    ``parts``: (name, draft); parts of one name count once, whatever they agree on. ``chance`` calibrates a node's
    score, its source being all names behind it, joined by ``+``. A node's score is that of the surest of its drafters,
    scaled down where siblings' would sum to more than one: drafters that look at the same text agree in their errors as
    well (a noisy or of two lookups says 0.78 where 0.68 are accepted, their maximum 0.64), and what agreement is worth
    is counted under the joint name.
    """
    parts = [(name, draft) for name, draft in parts if len(draft)]
    if len(parts) == 1 and parts[0][1].parents is None and len(parts[0][1]) <= budget:
        return renamed(*parts[0], source)
    nodes = trie(parts)
    siblings: dict[int, float] = {}
    for node in nodes:
        node.score = max(node.scores.values())
        siblings[node.parent] = siblings.get(node.parent, 0.0) + node.score
    labels = ["+".join(node.scores) for node in nodes]
    for node in nodes:
        node.score /= max(1.0, siblings[node.parent])
    order = _likeliest(nodes, labels, budget, chance)
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


def renamed(name: str, draft: Draft, source: str) -> Draft:
    """The draft of member ``name`` as one of ``source``, without its probes."""
    sources = [named(name, draft, node) for node in range(len(draft))]
    return replace(draft, source=source, sources=sources, probes=None)


def _likeliest(nodes: Sequence[Node], labels: Sequence[str], budget: int, chance: Chance) -> Sequence[int]:
    """The ``budget`` nodes of highest path probability, ascending; no node without its parent."""
    if len(nodes) <= budget:
        return range(len(nodes))
    paths: list[float] = []
    for node, label in zip(nodes, labels, strict=True):
        above = 1.0 if node.parent < 0 else paths[node.parent]
        paths.append(above * min(1.0, max(0.0, chance(label, node.depth, node.score))))
    return sorted(sorted(range(len(nodes)), key=lambda i: -paths[i])[:budget])


def trie(parts: Sequence[tuple[str, Draft]]) -> list[Node]:
    """All nodes of all parts, equal paths once; parents first."""
    nodes: list[Node] = []
    known: dict[tuple[int, int], int] = {}
    for name, draft in parts:
        places: list[int] = []
        for index, token in enumerate(draft.tokens):
            up = draft.parent(index)
            parent = places[up] if up >= 0 else -1
            at = known.setdefault((parent, token), len(nodes))
            if at == len(nodes):
                nodes.append(Node(token, parent, 1 if parent < 0 else nodes[parent].depth + 1, {}))
            places.append(at)
            score = 0.5 if draft.scores is None else draft.scores[index]
            label = named(name, draft, index)
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
            sources.append(named(name, draft, node))
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
