"""Traversal verification: block verification on trees, from the leaves to the root (arXiv 2505.12398)."""

from __future__ import annotations

from outrider.core.draft import Draft
from outrider.core.verifiers.base import Randomness, TargetLaws, Verifier, Walk
from outrider.core.verifiers.edges import acceptance, edge_law, remainder


class Traversal(Verifier, rule="traversal"):
    """Try the subtree below a node before the node itself; on a chain this is ``Block``.

    A node carries a weight w and a law p, at first w(root) = 1, w(child x) = min(1, w p(x) / q(x)) and the target's
    law. When the subtree of a child drawn from q fails, s being the sum of (w p - q)+, the node goes on with
    w := s / (s + 1 - w) and p := norm((w p - q)+). A node without children left is kept with probability w, and the
    next token comes from its p. The argument needs no more of q than that it is the law of the child given its earlier
    siblings, so draws without replacement are exact as well.
    """

    def walk(self, draft: Draft, laws: TargetLaws, rng: Randomness) -> Walk:
        """Walk ``draft`` in depth-first order; the root, of weight one, always passes."""
        self.check(draft)
        children = draft.children()

        def visit(node: int, weight: float) -> Walk | None:
            p = laws.probs(node)
            siblings = children[node + 1]
            for rank, child in enumerate(siblings):
                token = draft.tokens[child]
                q = edge_law(draft, child, siblings[:rank], p)
                found = visit(child, acceptance(weight, p, q, token))
                if found is not None:
                    return found
                weight, p = remainder(weight, p, q, token)
            if node >= 0 and not rng.bernoulli(weight, "accept", node):
                return None
            return Walk(draft.path(node), rng.categorical(p, "recovered" if siblings else "bonus", node))

        walk = visit(-1, 1.0)
        assert walk is not None  # the root always passes
        return walk
