"""EAGLE-3 (arXiv 2503.01840): one decoder layer over three of the target's layers, with a head over a reduced
vocabulary. Its projections see the token beside the feature; each further drafted token takes the layer's own output,
before the final norm, as its feature."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.heads.base import TargetWeights
from outrider.heads.config import RecurrentConfig
from outrider.heads.recurrent import Block, Norm, Product, RecurrentHead


class Eagle3Block(Block):
    """The block with norms of the token and of the feature, under the names of published checkpoints."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = Norm(config.hidden_size, config.rms_norm_eps)


class Eagle3(RecurrentHead):
    """The head as it is trained."""

    midlayer: Eagle3Block

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.hidden_layers) * hidden, hidden, bias=False)
        self.midlayer = Eagle3Block(config)
        self.norm = Norm(hidden, config.rms_norm_eps)

    def enter(self, features: Tensor, product: Product) -> Tensor:
        """The three layers fused to one feature."""
        return product(features)

    def join(self, embedded: Tensor, hidden: Tensor, product: Product) -> tuple[Tensor, Tensor]:
        """Both normed, side by side; the feature is the residual."""
        normed = self.midlayer.hidden_norm(hidden)
        both = torch.cat((self.midlayer.input_layernorm(embedded), normed), dim=-1)
        return both, normed if self.config.norm_before_residual else hidden

    @torch.no_grad()
    def start(self, target: TargetWeights, generator: torch.Generator) -> None:
        """As all, with the norm of the target's last block."""
        super().start(target, generator)
        self.midlayer.hidden_norm.weight.copy_(target.block.input_layernorm.weight)
