"""The default rule: the target's own sample decides, the draft only saves forwards (arXiv 2408.07978)."""

from __future__ import annotations

from outrider.core.draft import Draft
from outrider.core.verifiers.base import Randomness, TargetLaws, Verifier, Walk


class Sample(Verifier, rule="sample"):
    """At each node draw one token from the target, emit it, and descend if it is a child.

    What is emitted never depends on the draft: with noise keyed by (seed, position, token) the text equals plain
    decoding token for token. Among siblings with equal tokens the first one is taken.
    """

    def walk(self, draft: Draft, laws: TargetLaws, rng: Randomness) -> Walk:
        """Walk ``draft``; ``rng`` is not used, the draws are ``laws.draw``."""
        children = draft.children()
        path: list[int] = []
        node = -1
        while True:
            token = laws.draw(node)
            child = next((c for c in children[node + 1] if draft.tokens[c] == token), None)
            if child is None:
                return Walk(path, token)
            path.append(child)
            node = child
