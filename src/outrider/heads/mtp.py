"""A multi-token-prediction module as DeepSeek-V3 has it (arXiv 2412.19437): normed token and normed feature joined by
one matrix, a decoder layer, a final norm and a head. One module drafts a chain by taking its own output as feature."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.heads.base import TargetWeights
from outrider.heads.config import RecurrentConfig
from outrider.heads.recurrent import Norm, Product, RecurrentHead, WholeBlock


class Mtp(RecurrentHead):
    """The module as it is trained."""

    midlayer: WholeBlock

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.enorm, self.hnorm = Norm(hidden, eps), Norm(hidden, eps)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.midlayer = WholeBlock(config)
        self.norm = Norm(hidden, eps)

    def join(self, embedded: Tensor, hidden: Tensor, product: Product) -> tuple[Tensor, Tensor]:
        """The joined vector is the residual; the projections see it normed."""
        both = product(torch.cat((self.enorm(embedded), self.hnorm(hidden)), dim=-1))
        return self.midlayer.input_layernorm(both), both

    @torch.no_grad()
    def start(self, target: TargetWeights, generator: torch.Generator) -> None:
        """As all, with the norm of the target's last block."""
        super().start(target, generator)
        self.midlayer.input_layernorm.weight.copy_(target.block.input_layernorm.weight)
