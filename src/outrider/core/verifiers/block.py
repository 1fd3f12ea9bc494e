"""Block verification of a chain: tokens are accepted jointly, never fewer than by the token rule (arXiv 2403.10444)."""

from __future__ import annotations

from torch import Tensor

from outrider.core.draft import Draft
from outrider.core.verifiers.base import Randomness, TargetLaws, Verifier, Walk
from outrider.core.verifiers.edges import acceptance, edge_law, remainder


class Block(Verifier, rule="block"):
    """Keep the longest prefix of the chain whose own test passes.

    With w_0 = 1 and w_i = min(1, w_{i-1} p(x_i) / q(x_i)), prefix i < length passes with s / (s + 1 - w_i), where s is
    the sum of (w_i p - q)+ after it, and the whole chain passes with its w. The next token comes from norm((w p - q)+)
    after the kept prefix, from p after the whole chain.
    """

    def walk(self, draft: Draft, laws: TargetLaws, rng: Randomness) -> Walk:
        """Walk ``draft``: the joint weights from the root down, then the tests from the end of the chain up."""
        self.check(draft)
        targets = [laws.probs(node) for node in range(-1, len(draft))]  # targets[i]: p after i tokens
        edges = [edge_law(draft, node, (), targets[node]) for node in range(len(draft))]
        weights = [1.0]
        for node, q in enumerate(edges):
            weights.append(acceptance(weights[node], targets[node], q, draft.tokens[node]))
        kept, p = _longest(draft, targets, edges, weights, rng)
        return Walk(list(range(kept)), rng.categorical(p, "bonus" if kept == len(draft) else "recovered", kept - 1))


def _longest(
    draft: Draft, targets: list[Tensor], edges: list[Tensor | None], weights: list[float], rng: Randomness
) -> tuple[int, Tensor]:
    """Length of the longest prefix that passes and the law [vocab] of the token that follows it."""
    kept, chance, p = len(draft), weights[-1], targets[-1]
    while kept > 0 and not rng.bernoulli(chance, "accept", kept - 1):
        kept -= 1
        chance, p = remainder(weights[kept], targets[kept], edges[kept], draft.tokens[kept])
    return kept, p
