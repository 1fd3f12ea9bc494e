"""EAGLE-1 and EAGLE-2 (arXiv 2401.15077, 2406.16858): one decoder layer that goes on with the target's last hidden
state, and the target's own head, which stays as it is. Its output is a guess of the next feature, so it learns the
feature's distance beside the law. EAGLE-2 is the same head with a dynamic tree."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.heads.base import TargetWeights
from outrider.heads.config import RecurrentConfig
from outrider.heads.recurrent import INIT, Block, Product, RecurrentHead


class Eagle(RecurrentHead):
    """The head as it is trained."""

    feature_weight = 10.0  # the paper weighs the law by 0.1 and the feature by 1

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.fc = nn.Linear(2 * hidden, hidden, bias=True)
        nn.init.zeros_(self.fc.bias)
        self.midlayer = Block(config, hidden)
        self.lm_head.requires_grad_(False)

    @torch.no_grad()
    def start(self, target: TargetWeights, generator: torch.Generator) -> None:
        """The feature passes, and the block adds little: the target's last block reads and writes the residual stream
        before the final norm, and would blow up what has gone through it."""
        super().start(target, generator)
        for parameter in self.midlayer.parameters():
            if parameter.ndim == 2:
                parameter.copy_(INIT * torch.randn(parameter.shape, generator=generator))

    def join(self, embedded: Tensor, hidden: Tensor, product: Product) -> tuple[Tensor, Tensor]:
        """One linear layer over both; no norm."""
        both = product(torch.cat((embedded, hidden), dim=-1))
        return both, both
