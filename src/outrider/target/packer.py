"""From modules of transformers to packed layers, in the weight format of a load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from outrider.target.formats import Blocks, join
from outrider.target.gguf_blocks import BlockSource
from outrider.target.packed import PackedLinear


@dataclass(slots=True)
class Packer:
    """How matrices become packed layers. ``source``: the blocks of a GGUF file, for format `gguf`."""

    weight_format: str
    exact: bool
    source: BlockSource | None = None
    _names: dict[int, str] = field(default_factory=dict)

    def name_modules(self, model: nn.Module) -> None:
        """Remember the names under which a GGUF file is asked for the matrices of ``model``."""
        self._names = {id(module): name for name, module in model.named_modules()}

    def matrix(self, weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
        """A matrix [out, in] that no module of the file stands for; format `gguf` holds it in float16."""
        return PackedLinear(weight.detach(), bias, self.weight_format, self.exact)

    def linear(self, *parts: Any) -> PackedLinear:
        """Linear modules with one input, one below the other."""
        weight = torch.cat([part.weight.detach() for part in parts])
        biased = any(part.bias is not None for part in parts)
        zeros = [part.weight.new_zeros(part.weight.shape[0]) if part.bias is None else part.bias for part in parts]
        bias = torch.cat(zeros).detach() if biased else None
        return PackedLinear(weight, bias, self.weight_format, self.exact, self._blocks(parts))

    def _blocks(self, parts: Sequence[Any]) -> Blocks | None:
        if self.source is None:
            return None
        found = [self.source.blocks(self._names[id(part)], part.weight.detach()) for part in parts]
        known = [blocks for blocks in found if blocks is not None]
        return join(known) if len(known) == len(found) else None
