"""Rules that change the target's law for more accepted tokens (arXiv 2401.10774). Off unless asked for."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from outrider.core.draft import Draft
from outrider.core.verifiers.base import Randomness, TargetLaws, Verifier, Walk
from outrider.errors import NumericsError


class _Lossy(Verifier):
    """Accept a child when p(child) is over a bar; of all accepted paths take the longest, then the likeliest.

    The token after the path is the target's own sample. At temperature 0 the law is a point mass, so the text is the
    greedy one.
    """

    @abstractmethod
    def bar(self, p: Tensor) -> float:
        """What the probability of a token must exceed at a node with law ``p`` [vocab]."""

    def walk(self, draft: Draft, laws: TargetLaws, rng: Randomness) -> Walk:
        """Walk ``draft`` level by level; ``rng`` is not used, the last token is ``laws.draw``."""
        children = draft.children()
        best = -1
        level = [(0.0, -1)]  # (log probability of the path, node)
        while level:
            best = max(level, key=lambda scored: (scored[0], -scored[1]))[1]
            level = [pair for scored in level for pair in self._accepted(draft, laws, children, *scored)]
        return Walk(draft.path(best), laws.draw(best))

    def _accepted(
        self, draft: Draft, laws: TargetLaws, children: list[list[int]], score: float, node: int
    ) -> list[tuple[float, int]]:
        if not children[node + 1]:
            return []
        p = laws.probs(node)
        bar = self.bar(p)
        if bar != bar:
            raise NumericsError("the target's law holds NaN: check the logits of the target")
        chances = [(float(p[draft.tokens[child]]), child) for child in children[node + 1]]
        return [(score + math.log(chance), child) for chance, child in chances if chance > bar]


class Typical(_Lossy, rule="typical"):
    """Typical acceptance: p(x) > min(threshold, alpha exp(-H(p))), H the entropy in nats."""

    def __init__(self, threshold: float = 0.09, alpha: float = 0.3) -> None:
        self.threshold = threshold
        self.alpha = alpha

    def bar(self, p: Tensor) -> float:
        """min(threshold, alpha exp(-H(p)))."""
        entropy = float(torch.special.entr(p).sum())
        return min(self.threshold, self.alpha * math.exp(-entropy)) if entropy == entropy else math.nan


class Threshold(_Lossy, rule="threshold"):
    """Fixed threshold: p(x) > threshold."""

    def __init__(self, threshold: float = 0.09) -> None:
        self.threshold = threshold

    def bar(self, p: Tensor) -> float:
        """The threshold, whatever the law."""
        return self.threshold
