"""Hydra (arXiv 2402.05109): Medusa's heads with eyes for what was drafted. Head k sees the target's last hidden state
and the embeddings of the k + 1 tokens since: the root and those that the heads before it drafted."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from outrider.heads.medusa import StackHead


class Hydra(StackHead):
    """The heads as they are trained."""

    def width(self, step: int) -> int:
        """The embeddings of the tokens, latest first, and the hidden state."""
        return (step + 2) * self.config.hidden_size

    def unroll(self, embedded: Tensor, features: Tensor, steps: int, start: int = 0) -> Iterator[Tensor]:
        """See ``DraftHead``; no more steps than heads."""
        seen, embedded = features[:, start:], embedded[:, start:]
        for step, block in enumerate(self.blocks[:steps]):
            seen = torch.cat((nn.functional.pad(embedded[:, step:], (0, 0, 0, step)), seen), dim=-1)
            yield block(seen)
