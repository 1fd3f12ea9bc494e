"""Rejection sampling on chains and, recursively, on trees (arXiv 2211.17192, 2302.01318, 2305.09781)."""

from __future__ import annotations

from outrider.core.draft import Draft
from outrider.core.verifiers.base import Randomness, TargetLaws, Verifier, Walk
from outrider.core.verifiers.edges import acceptance, edge_law, residual


class Rejection(Verifier, rule="rejection"):
    """Try the children of a node in order; accept x with min(1, p(x) / q(x)), else go on with p := norm((p - q)+).

    Every edge has its own q: a point mass, an independent sample, or a draw without replacement, mixed at one node
    if need be. When all children are rejected the recovered token comes from what is left of p; at a leaf the bonus
    token comes from p.
    """

    def walk(self, draft: Draft, laws: TargetLaws, rng: Randomness) -> Walk:
        """Walk ``draft`` from the root downwards."""
        self.check(draft)
        children = draft.children()
        path: list[int] = []
        node = -1
        while True:
            p = laws.probs(node)
            siblings = children[node + 1]
            for rank, child in enumerate(siblings):
                token = draft.tokens[child]
                q = edge_law(draft, child, siblings[:rank], p)
                if rng.bernoulli(acceptance(1.0, p, q, token), "accept", child):
                    break
                p = residual(p, q, token)
            else:
                return Walk(path, rng.categorical(p, "recovered" if siblings else "bonus", node))
            path.append(child)
            node = child
