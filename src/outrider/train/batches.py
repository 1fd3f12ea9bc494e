"""Texts to padded batches, in an order that follows from the seed and the step alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from outrider.train.features import Reader, Text


@dataclass(frozen=True, slots=True)
class Batch:
    """``rows`` rows a text. Row t: feature of position t, token at t + 1, and what the target makes of position t + 1.

    tokens, best [texts, rows]: at t + 1; features [texts, rows, width] at t; last [texts, rows, hidden] and
    log_sum [texts, rows] at t + 1; mask [texts, rows]: the token at t + 2 is one that is learnt.
    """

    tokens: Tensor
    features: Tensor
    last: Tensor
    log_sum: Tensor
    best: Tensor
    mask: Tensor

    def to(self, device: torch.device) -> Batch:
        """The batch on ``device``."""
        return Batch(*(getattr(self, each.name).to(device) for each in fields(self)))


def plan(lengths: Sequence[int], prompts: Sequence[int], rows: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches of text numbers with about ``rows`` padded rows each, in random order: texts of like length and with
    prompts of like length together. Texts that are all prompt teach nothing, and are left out."""
    rng = random.Random(f"{seed}:{epoch}")
    order = [index for index, (length, prompt) in enumerate(zip(lengths, prompts, strict=True)) if prompt < length]
    rng.shuffle(order)
    order.sort(key=lambda index: (lengths[index] // 16, prompts[index] // 16))  # stable: shuffled within a class
    batches: list[list[int]] = []
    current: list[int] = []
    for index in order:
        if current and lengths[index] * (len(current) + 1) > rows:
            batches.append(current)
            current = []
        current.append(index)
    if current:
        batches.append(current)
    rng.shuffle(batches)
    return batches


def collate(reader: Reader, indices: Sequence[int], longest: int, normed: bool = False, whole: bool = False) -> Batch:
    """The batch of texts ``indices``, each cut to ``longest`` tokens. ``normed``: features are the normed last hidden
    states, not those of the layers that the store holds; ``whole``: the prompts' tokens are in the mask too."""
    texts = [reader[index] for index in indices]
    rows = max(min(len(text.tokens), longest) for text in texts) - 1
    first = [0 if whole else max(0, text.num_prompt_tokens - 2) for text in texts]  # row t predicts the token at t + 2
    parts = [
        _shifted(text, longest, rows, text.last if normed else text.features, row)
        for text, row in zip(texts, first, strict=True)
    ]
    return Batch(*(torch.stack(column) for column in zip(*parts, strict=True)))


def _shifted(text: Text, longest: int, rows: int, features: Tensor, first: int) -> tuple[Tensor, ...]:
    count = min(len(text.tokens), longest) - 1  # rows that have a token
    pad = rows - count

    def fill(part: Tensor) -> Tensor:
        return torch.cat([part, part.new_zeros(pad, *part.shape[1:])]) if pad else part

    mask = torch.zeros(rows, dtype=torch.bool)
    mask[first : max(0, count - 1)] = True
    behind = slice(1, count + 1)
    return (
        fill(text.tokens[behind].long()),
        fill(features[:count]),
        fill(text.last[behind]),
        fill(text.log_sum[behind]),
        fill(text.best[behind].long()),
        mask,
    )
