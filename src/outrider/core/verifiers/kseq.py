"""k-SEQ: selection among K independent draft paths, level by level (SpecTr, arXiv 2310.15141)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.core.draft import Draft, Iid
from outrider.core.verifiers.base import Randomness, TargetLaws, Verifier, Walk
from outrider.core.verifiers.edges import edge_law

BISECTIONS = 30  # halvings of [1, k]: the rule is exact for every rho over the root, only acceptance suffers


class KSeq(Verifier, rule="kseq"):
    """At a node, k surviving paths offer k independent samples of one q; each passes with min(1, p / (rho q)).

    With beta(rho) = sum min(q, p / rho), rho solves 1 - (1 - beta)^k = rho beta. One of the passing samples is taken
    at random (in law the first passing one of a random order: the trie has forgotten the order of the paths, and an
    order that depends on the tokens would bias the rule), and the paths that go through it survive. When none passes,
    the recovered token comes from norm(p - min(q, p / rho) (1 - (1 - beta)^k) / beta). One path is ``Rejection``.
    """

    def refuse(self, draft: Draft) -> str | None:
        """Beyond shape and laws: siblings are distinct, share one q, and no more paths leave a node than enter it."""
        reason = super().refuse(draft)
        if reason is not None:
            return reason
        counts = _counts(draft)
        for parent, siblings in enumerate(draft.children(), start=-1):
            if len({draft.tokens[child] for child in siblings}) < len(siblings):
                return "verifier 'kseq' takes merged paths: merge equal siblings and count them in multiplicity"
            if not all(_same_law(draft, siblings[0], child) for child in siblings):
                return "verifier 'kseq' takes siblings of one q: draft all paths with the same model"
            if min((counts[child] for child in siblings), default=1) < 1:
                return "verifier 'kseq' takes a multiplicity of one or more at every node: drop the other nodes"
            if parent >= 0 and sum(counts[child] for child in siblings) > counts[parent]:
                return "verifier 'kseq': more paths leave a node than enter it: correct the draft's multiplicity"
        return None

    def walk(self, draft: Draft, laws: TargetLaws, rng: Randomness) -> Walk:
        """Walk the trie of paths from the root downwards."""
        self.check(draft)
        children, counts = draft.children(), _counts(draft)
        path: list[int] = []
        node = -1
        while True:
            p = laws.probs(node)
            siblings = children[node + 1]
            if not siblings:
                return Walk(path, rng.categorical(p, "bonus", node))
            edges = [edge_law(draft, child, (), p) for child in siblings]
            q = edges[0]
            assert q is not None  # only iid edges get here
            paths = sum(counts[child] for child in siblings)
            rho = solve_rho(p, q, paths)
            passed = [
                sum(_passes(p, q, rho, draft.tokens[child], rng, copy, child) for copy in range(counts[child]))
                for child in siblings
            ]
            if not any(passed):
                return Walk(path, rng.categorical(leftover(p, q, rho, paths), "recovered", node))
            node = siblings[_pick(passed, rng, node)]
            path.append(node)


def overlap(p: Tensor, q: Tensor, rho: float) -> float:
    """beta(rho) = sum of min(q, p / rho): the chance that one sample of q passes."""
    return min(1.0, float(torch.minimum(q, p / rho).sum()))


def passing(beta: float, paths: int) -> float:
    """1 - (1 - beta)^paths: the chance that at least one of ``paths`` samples passes."""
    return 1.0 if beta >= 1.0 else -math.expm1(paths * math.log1p(-beta))


def solve_rho(p: Tensor, q: Tensor, paths: int) -> float:
    """The smallest rho in [1, paths], up to rounding, with 1 - (1 - beta)^paths <= rho beta, by bisection."""
    low, high = 1.0, float(paths)
    for _ in range(BISECTIONS if paths > 1 else 0):
        rho = (low + high) / 2.0
        beta = overlap(p, q, rho)
        if passing(beta, paths) <= rho * beta:
            high = rho
        else:
            low = rho
    return high


def leftover(p: Tensor, q: Tensor, rho: float, paths: int) -> Tensor:
    """norm(p - min(q, p / rho) (1 - (1 - beta)^paths) / beta) [vocab]; p itself where nothing is left but rounding."""
    beta = overlap(p, q, rho)
    if not beta > 0.0:
        return p
    rest = (p - torch.minimum(q, p / rho) * (passing(beta, paths) / beta)).clamp(min=0.0)
    mass = float(rest.sum())
    return rest / mass if mass > 0.0 else p


def _passes(p: Tensor, q: Tensor, rho: float, token: int, rng: Randomness, copy: int, child: int) -> bool:
    chance = min(1.0, float(p[token]) / (rho * float(q[token])))
    return rng.bernoulli(chance, f"accept {copy}", child)


def _pick(passed: list[int], rng: Randomness, node: int) -> int:
    candidates = [rank for rank, count in enumerate(passed) if count]
    if len(candidates) == 1:
        return candidates[0]
    return rng.categorical(torch.tensor(passed, dtype=torch.float64), "select", node)


def _counts(draft: Draft) -> list[int]:
    return [1] * len(draft) if draft.multiplicity is None else list(draft.multiplicity)


def _same_law(draft: Draft, first: int, other: int) -> bool:
    left, right = draft.law(first), draft.law(other)
    if not (isinstance(left, Iid) and isinstance(right, Iid)):
        return False
    return left.q is right.q or torch.equal(left.q, right.q)
