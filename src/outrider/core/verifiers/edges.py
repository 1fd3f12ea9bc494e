"""Law arithmetic that the classical rules share: the law of an edge, acceptance, and what a rejected edge leaves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.core.draft import Delta, Draft, WithoutReplacement
from outrider.errors import ContractError, NumericsError


def edge_law(draft: Draft, node: int, earlier: Sequence[int], like: Tensor) -> Tensor | None:
    """The law [vocab] that the token of ``node`` was drawn from, or None for a point mass on it.

    ``earlier``: siblings that stand before ``node``; edges without replacement exclude their tokens, whatever their
    own laws. ``like``: a target law [vocab] whose dtype and device the result gets. Raises ContractError when the law
    has another length than the target's, or gives the token no probability.
    """
    law = draft.law(node)
    if isinstance(law, Delta):
        return None
    if law.q.shape != like.shape:
        raise ContractError(
            f"draft of {draft.source!r}: node {node} has a law of shape {tuple(law.q.shape)} under a target law of "
            f"shape {tuple(like.shape)}: spread it over the target's vocabulary"
        )
    q = law.q.to(like)
    if isinstance(law, WithoutReplacement):
        q = without(q, [draft.tokens[sibling] for sibling in earlier])
    if not float(q[draft.tokens[node]]) > 0.0:
        raise ContractError(
            f"draft of {draft.source!r}: token {draft.tokens[node]} of node {node} has probability "
            f"{float(q[draft.tokens[node]])} under its own law: hand over the law that it was drawn from"
        )
    return q


def without(q: Tensor, tokens: Sequence[int]) -> Tensor:
    """``q`` [vocab] once ``tokens`` were drawn without replacement; uniform over the rest when that uses q up."""
    if not tokens:
        return q
    drawn = torch.tensor(tokens, device=q.device)
    rest = q.index_fill(0, drawn, 0.0)
    if not float(rest.sum()) > 0.0:
        rest = torch.ones_like(q).index_fill(0, drawn, 0.0)
    return rest / rest.sum()


def acceptance(value: float, p: Tensor, q: Tensor | None, token: int) -> float:
    """min(1, value p(token) / q(token)), with q(token) = 1 for a point mass. Raises NumericsError on NaN."""
    mass = value * float(p[token])
    limit = 1.0 if q is None else float(q[token])
    if mass >= limit:
        return 1.0
    if not mass < limit:
        raise NumericsError(f"the target's probability of token {token} is NaN: check the logits of the target")
    return mass / limit


def excess(value: float, p: Tensor, q: Tensor | None, token: int) -> tuple[Tensor, float]:
    """(value p - q)+ [vocab] and its sum, where q None is a point mass on ``token``. Raises NumericsError on NaN."""
    if q is None:
        rest = value * p
        rest[token] = 0.0
    else:
        rest = (value * p - q).clamp(min=0.0)
    mass = float(rest.sum())
    if mass != mass:
        raise NumericsError("a law of the draft or of the target holds NaN: check the logits of both models")
    return rest, mass


def residual(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    """norm((p - q)+) [vocab]: what to draw from once ``token`` ~ q was rejected under p.

    Where p <= q everywhere (p equals q up to rounding, so the rejection was a rounding accident) it is p itself.
    """
    rest, mass = excess(1.0, p, q, token)
    return rest / mass if mass > 0.0 else p


def remainder(value: float, p: Tensor, q: Tensor | None, token: int) -> tuple[float, Tensor]:
    """What is left at a node of weight ``value`` and law p [vocab] when the subtree of a child ``token`` ~ q failed.

    With s the sum of (value p - q)+, the node's new weight is s / (s + 1 - value) and its new law (value p - q)+ / s
    (block verification, arXiv 2403.10444; traversal verification, arXiv 2505.12398).
    """
    rest, mass = excess(value, p, q, token)
    if mass > 0.0:
        return mass / (mass + 1.0 - value), rest / mass
    return (1.0 if value >= 1.0 else 0.0), p
