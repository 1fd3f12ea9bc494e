"""How a draft's law agrees with the target's at the positions of a text: one law against another, no loop.

| figure | definition |
|---|---|
| top-1 agreement | both laws have the same likeliest token: the acceptance at temperature 0 |
| KL | KL(p || q) in nats, over the tokens that the draft knows, p renormalised over them |
| overlap | sum of min(p, q): the acceptance of rejection sampling (arXiv 2211.17192) |
| shared noise | log p and log q have the same best token with the same Gumbel noise added (arXiv 2408.07978) |
| coverage | mass of p on the tokens that the draft knows |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.core import noise

FIGURES = ("top1", "kl", "overlap", "shared_noise", "coverage")


def figures(p_scores: Tensor, q_scores: Tensor, key: int, position: int) -> list[float]:
    """The row of ``FIGURES`` for processed scores [vocab] of target and draft at one absolute ``position``."""
    log_p, log_q = p_scores.float().log_softmax(-1), q_scores.float().log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    known = torch.isfinite(log_q) & (p > 0)
    mass = float(p[known].sum())
    inside = float((p[known] * (log_p[known] - log_q[known])).sum())
    kl = inside / mass - math.log(mass) if mass > 0 else float("nan")
    noisy = noise.gumbel(key, position, p.shape[0])
    same = (p_scores.double() + noisy).argmax() == (q_scores.double() + noisy).argmax()
    overlap = float(torch.minimum(p, q).sum())
    return [float(log_p.argmax() == log_q.argmax()), max(0.0, kl), overlap, float(same), mass]


@dataclass(slots=True)
class Agreement:
    """Sums of ``FIGURES`` over ``num_positions`` positions, by task too."""

    sums: list[float] = field(default_factory=lambda: [0.0] * len(FIGURES))
    num_positions: int = 0

    def add(self, row: Sequence[float], count: int = 1) -> None:
        """One position's figures, or the sums of ``count``."""
        self.sums = [mine + theirs for mine, theirs in zip(self.sums, row, strict=True)]
        self.num_positions += count

    def means(self) -> dict[str, float] | None:
        """By figure; None when no position was looked at."""
        if not self.num_positions:
            return None
        return {name: value / self.num_positions for name, value in zip(FIGURES, self.sums, strict=True)}
