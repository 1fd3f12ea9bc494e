"""Heads of residual blocks as they draft: packed weights, and a cache where a prefix layer reads the whole text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.errors import NumericsError
from outrider.heads.hydra_plus import HydraPlus
from outrider.heads.medusa import ResBlock, StackHead
from outrider.heads.prefix import PrefixDecoder
from outrider.target.fused import DAMAGED
from outrider.target.packed import PackedLinear
from outrider.target.packer import Packer


class StackDecoder:
    """``forward`` of one position's head over packed weights."""

    def __init__(self, head: StackHead, packer: Packer) -> None:
        self.config = head.config
        self.target_ids = head.target_ids
        self.device = head.vocabulary(0).weight.device
        self.widths = [head.width(step) for step in range(head.config.num_heads)]
        self._blocks = [_pack(blocks, packer) for blocks in head.blocks]
        matrices = 1 if head.config.shared_head else head.config.num_heads
        self.prefix = PrefixDecoder(head, packer) if isinstance(head, HydraPlus) else None
        self._heads = [packer.matrix(head.vocabulary(step).weight) for step in range(matrices)]

    @torch.inference_mode()
    def forward(self, step: int, inputs: Tensor) -> Tensor:
        """inputs [rows, widths[step]] float32 -> logits over the draft vocabulary [rows, draft vocab] of position
        ``step``. Raises NumericsError when a logit is NaN or +infinity."""
        x = self.blocks(step, inputs)
        logits: Tensor = self._heads[step if len(self._heads) > 1 else 0](x)
        if not bool(torch.isfinite(logits.amax())):
            raise NumericsError(DAMAGED)
        return logits

    def blocks(self, step: int, x: Tensor) -> Tensor:
        """What the vocabulary's matrix sees [rows, hidden]."""
        for linear in self._blocks[step]:
            x = x[:, -linear.out_features :] + nn.functional.silu(linear.rows(x))
        return x


def _pack(blocks: nn.Module, packer: Packer) -> list[PackedLinear]:
    linears = [block.linear for block in blocks.children() if isinstance(block, ResBlock)]
    return [packer.matrix(linear.weight, linear.bias.detach().float()) for linear in linears]
