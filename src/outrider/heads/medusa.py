"""Medusa (arXiv 2401.10774): a head a position over the target's last hidden state, blind to what the others draft.

Head k is residual blocks of x + SiLU(W x + b) and then the vocabulary's matrix, one for all heads or one each, which
starts as the target's own. So an untrained head k repeats the target's law of the position before.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from outrider.heads.base import DraftHead, TargetWeights
from outrider.heads.config import StackConfig


class ResBlock(nn.Module):
    """x + SiLU(W x + b); ``width``: of x, where it is wider than the output, whose x is its last part."""

    def __init__(self, hidden: int, width: int | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(width or hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> [..., hidden]."""
        return x[..., -self.linear.out_features :] + nn.functional.silu(self.linear(x))


class StackHead(DraftHead):
    """Heads of residual blocks, one a position, over one vocabulary matrix."""

    config: StackConfig

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.blocks = nn.ModuleList(
            nn.Sequential(ResBlock(hidden, self.width(step)), *(ResBlock(hidden) for _ in range(config.num_layers - 1)))
            for step in range(config.num_heads)
        )
        if config.shared_head:
            self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        else:
            self.lm_heads = nn.ModuleList(
                nn.Linear(hidden, config.draft_vocab_size, bias=False) for _ in range(config.num_heads)
            )

    def vocabulary(self, step: int) -> nn.Linear:
        """See ``DraftHead``; one for all steps, or one each."""
        matrix = self.lm_head if self.config.shared_head else self.lm_heads[step]
        assert isinstance(matrix, nn.Linear)
        return matrix

    def width(self, step: int) -> int:
        """Inputs of head ``step``."""
        return self.config.hidden_size

    @torch.no_grad()
    def start(self, target: TargetWeights, generator: torch.Generator) -> None:
        """The target's own head behind blocks that pass their input."""
        for step in range(1 if self.config.shared_head else self.config.num_heads):
            self.vocabulary(step).weight.copy_(target.head[self.target_ids])


class Medusa(StackHead):
    """The heads as they are trained."""

    def unroll(self, embedded: Tensor, features: Tensor, steps: int, start: int = 0) -> Iterator[Tensor]:
        """See ``DraftHead``; no more steps than heads. The tokens are not looked at."""
        for block in self.blocks[:steps]:
            yield block(features[:, start:])
