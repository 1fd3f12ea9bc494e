"""Hydra++ (arXiv 2402.05109): Hydra's heads behind a decoder block of their own, the prefix layer, which reads the
target's last hidden states of the whole text. So a head sees more of the past than one position's state holds.

The paper's deeper heads are ``num_layers``; its loss, the target's whole law, is that of all heads here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from outrider.heads.base import TargetWeights
from outrider.heads.config import PrefixConfig
from outrider.heads.hydra import Hydra
from outrider.heads.recurrent import INIT, WholeBlock, factors


class PrefixBlock(WholeBlock):
    """The prefix layer."""

    def __init__(self, config: PrefixConfig) -> None:
        super().__init__(config)
        self._config = config

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, rows, hidden], from a text's first position on -> like x; a row sees those up to its own."""
        inputs = self.input_layernorm(x)
        rotary = factors(torch.arange(x.shape[1], device=x.device), self._config)
        k, v = self.self_attn.context(inputs, rotary)
        q = self.self_attn.query(inputs, rotary)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.self_attn.o_proj(attended)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class HydraPlus(Hydra):
    """The heads as they are trained."""

    config: PrefixConfig

    def __init__(self, config: PrefixConfig) -> None:
        super().__init__(config)
        self.prefix = PrefixBlock(config)

    def unroll(self, embedded: Tensor, features: Tensor, steps: int, start: int = 0) -> Iterator[Tensor]:
        """See ``DraftHead``; no more steps than heads."""
        return super().unroll(embedded, self.prefix(features), steps, start)

    @torch.no_grad()
    def start(self, target: TargetWeights, generator: torch.Generator) -> None:
        """As all stacks, behind a prefix layer that adds next to nothing."""
        super().start(target, generator)
        for parameter in self.prefix.parameters():
            if parameter.ndim == 2:
                parameter.copy_(INIT * torch.randn(parameter.shape, generator=generator))
