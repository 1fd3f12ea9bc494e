"""How a drafter with a model turns one row of processed logits into the children of a node, under every rule.

With shared noise they are the top-k of log q + the target's noise (delta edges). Without it they are independent
samples of q, whose law goes with them; how many are drawn is fixed before any of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.core.draft import Iid, Law
from outrider.drafters.base import DraftNoise, DraftSequence


class Child(NamedTuple):
    """``chance``: q of the token. ``law``: None for delta edges. ``num_paths``: paths that were merged into it."""

    token: int
    chance: float
    law: Law | None
    num_paths: int


def children(
    noise: DraftNoise, seq: DraftSequence, scores: Tensor, position: int, width: int, first: int = 0
) -> list[Child]:
    """``width`` children with the processed logits ``scores`` [vocab] for absolute ``position``.

    ``first``: how many samples were drawn for this position already. Fewer come back when tokens are masked (shared
    noise) or equal samples are merged.
    """
    if noise.shared:
        picks = noise.candidates(seq, scores, position, width)
        return [Child(token, chance, None, 1) for token, chance in zip(picks, chances(scores, picks), strict=True)]
    law = law_of(scores, seq.pipeline.greedy)
    tokens = [noise.sample(seq, law.q, position, first + index) for index in range(width)]
    counted = {t: tokens.count(t) for t in dict.fromkeys(tokens)}
    merged = counted.items() if noise.merge_paths else [(token, 1) for token in tokens]
    return [Child(token, float(law.q[token]), law, count) for token, count in merged]


def fit(row: Tensor, vocab_size: int) -> Tensor:
    """A raw row [draft vocab] over the target's vocabulary; ids that only one of the two has are padding."""
    missing = vocab_size - row.shape[0]
    return row[:vocab_size] if missing <= 0 else torch.cat((row, row.new_full((missing,), -torch.inf)))


def chances(scores: Tensor, tokens: Sequence[int]) -> list[float]:
    """q of ``tokens`` under processed ``scores`` [vocab]."""
    picked = torch.exp(scores[torch.tensor(tokens)] - torch.logsumexp(scores, 0))
    return [float(value) for value in picked]


def law_of(scores: Tensor, greedy: bool) -> Iid:
    """The processed law that samples are drawn from; one-hot at temperature 0."""
    if greedy:
        q = torch.zeros(scores.shape, dtype=torch.float64)
        q[scores.argmax()] = 1.0
        return Iid(q)
    return Iid(torch.softmax(scores.double(), 0))
