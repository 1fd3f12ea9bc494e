"""Filters that cut the tail of one law: min-p, typical-p, top-k, top-p. In place, on float32 scores [vocab].

Every reduction is over one row and in an order that does not depend on the number of threads: maxima and softmax over
a single row, and cumulative sums in place of ``sum``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_FIRST_CUT = 512


def min_p_(scores: Tensor, min_p: float) -> None:
    """Mask tokens whose probability is below ``min_p`` times that of the likeliest (arXiv 2407.01082)."""
    scores.masked_fill_(scores < float(scores.max()) + math.log(min_p), -math.inf)


def typical_p_(scores: Tensor, typical_p: float) -> None:
    """Keep the tokens whose surprise is closest to the entropy, while the mass before a token is below ``typical_p``.

    Locally typical sampling (arXiv 2202.00666); ties in closeness go to the lowest id.
    """
    ids = torch.nonzero(scores != -math.inf).flatten()
    log_p = torch.log_softmax(scores[ids].to(torch.float64), 0)
    p = log_p.exp()
    surprise_gap = (log_p - (p * log_p).cumsum(0)[-1]).abs()
    _keep_best_(scores, ids, -surprise_gap, p, typical_p)


def top_k_(scores: Tensor, top_k: int) -> None:
    """Mask tokens below the ``top_k``-th best score; ties with it are all kept, as in vLLM."""
    if top_k < scores.numel():
        scores.masked_fill_(scores < torch.topk(scores, top_k).values.min(), -math.inf)


def top_p_(scores: Tensor, top_p: float) -> None:
    """Keep the likeliest tokens while the mass before a token is below ``top_p``; ties go to the lowest id."""
    ids = torch.nonzero(scores != -math.inf).flatten()
    kept = scores[ids]
    _keep_best_(scores, ids, kept, torch.softmax(kept.to(torch.float64), 0), top_p)


def _keep_best_(scores: Tensor, ids: Tensor, rank: Tensor, p: Tensor, mass: float) -> None:
    """Keep, of ``ids`` [n] ascending, those before which, in descending order of ``rank`` [n], lies less than ``mass``.

    Only as long a prefix of that order is sorted as the mass asks for: a prefix takes all ties with its last rank, so
    it is the beginning of the full stable sort.
    """
    size = _FIRST_CUT
    while True:
        head = torch.arange(ids.numel(), device=ids.device)
        if size < ids.numel():
            head = torch.nonzero(rank >= torch.topk(rank, size).values.min()).flatten()
        order = head[torch.sort(rank[head], descending=True, stable=True).indices]
        cumulative = p[order].cumsum(0)
        if head.numel() == ids.numel() or float(cumulative[-1]) >= mass:
            break
        size *= 8
    before = torch.cat((cumulative.new_zeros(1), cumulative[:-1]))
    survivors = ids[order[before < mass]]
    values = scores[survivors]
    scores.fill_(-math.inf)
    scores[survivors] = values
