"""How a drafter with a model turns one row of processed logits into the children of a node, under every rule.

With shared noise they are the top-k of log q + the target's noise (delta edges). Without it they are independent
samples of q, whose law goes with them; how many are drawn is fixed before any of them is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outrider import native
from outrider.core.draft import Iid, Law
from outrider.drafters.base import DraftNoise, DraftSequence

_DIFFERENCE = 0.3  # scale of log p - log q; see _candidates
_OTHERS = 3


class Child(NamedTuple):
    """``chance``: the drafter's estimate that the target takes the token. ``law``: None for delta edges. ``num_paths``:
    paths that were merged into it."""

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
        return [Child(*pick, None, 1) for pick in _candidates(noise, seq, scores, position, width)]
    law = law_of(scores, seq.pipeline.greedy)
    tokens = [noise.sample(seq, law.q, position, first + index) for index in range(width)]
    counted = list(Counter(tokens).items()) if noise.merge_paths else [(token, 1) for token in tokens]
    q = chances(scores, [token for token, _ in counted])
    return [Child(token, chance, law, count) for (token, count), chance in zip(counted, q, strict=True)]


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The places of the ``count`` largest of each row of ``logits`` [rows, n], largest first, and their probabilities
    [rows, count]."""
    library = native.library()
    if library is None or logits.device.type != "cpu" or logits.dtype != torch.float32:
        values, places = logits.topk(count, dim=-1)
        return places, (values - logits.logsumexp(-1, keepdim=True)).exp()
    if len(logits) > 1 and logits.stride(0) == 0:  # Medusa's: one row for all nodes of a level
        places, shares = likeliest(logits[:1], count)
        return places.expand(len(logits), -1), shares.expand(len(logits), -1)
    logits = logits.contiguous()
    places = torch.empty((len(logits), count), dtype=torch.int64)
    shares = torch.empty((len(logits), count))
    library.likeliest(logits.data_ptr(), *logits.shape, count, places.data_ptr(), shares.data_ptr(), native.threads())
    return places, shares


def _candidates(
    noise: DraftNoise, seq: DraftSequence, scores: Tensor, position: int, count: int
) -> list[tuple[int, float]]:
    """The ``count`` best of ``scores`` + noise, and the chance that the target takes each.

    The target takes the best of log p + the same noise. With log p - log q itself Gumbel noise of a scale s, that is a
    softmax of (log q + noise) / s; a few candidates more than are wanted stand for the rest.
    """
    if seq.pipeline.greedy:
        picks = noise.candidates(seq, scores, position, count)
        return list(zip(picks, chances(scores, picks), strict=True))
    picks = noise.candidates(seq, scores, position, count + _OTHERS)
    likely = torch.softmax(noise.perturbed(seq, scores, position, picks) / _DIFFERENCE, 0).tolist()
    return list(zip(picks[:count], likely[:count], strict=True))


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
