"""Rotary factors that do not depend on what else is in the batch.

transformers chooses LongRoPE's factors (arXiv 2402.13753) and dynamic NTK's base by the longest position of the whole
forward, so in a flat batch a long sequence would change the rows of a short one. Here the longest position that the
model may serve decides once, and every row looks its factors up.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class RotaryTable(nn.Module):
    """The factors of one rotary module for the positions 0..length-1, in the module's place.

    ``tables``: by kind of layer, or under None for a module without kinds; cos and sin [length, rotary dim] float32.
    LongRoPE takes its long factors when ``length`` is over the original context, for short texts as well.
    """

    def __init__(self, rotary: Any, length: int, device: torch.device) -> None:
        super().__init__()
        kinds: list[str | None] = sorted(rotary.rope_type) if isinstance(rotary.rope_type, dict) else [None]
        positions = torch.arange(length, device=device)[None]
        anchor = torch.zeros(1, device=device)  # its dtype is that of the factors
        self.tables: dict[str | None, tuple[Tensor, ...]] = {}
        for kind in kinds:
            factors = rotary(anchor, positions) if kind is None else rotary(anchor, positions, kind)
            self.tables[kind] = tuple(factor[0].contiguous() for factor in factors)

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, ...]:
        """cos and sin [*position_ids.shape, rotary dim] in the dtype of x."""
        return tuple(table[position_ids].to(x.dtype) for table in self.tables[layer_type])


@torch.inference_mode()
def fix_rotary(model: nn.Module, length: int, device: torch.device) -> list[RotaryTable]:
    """Put a table for ``length`` positions in the place of every rotary module of ``model``; the tables."""
    tables: list[RotaryTable] = []
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if hasattr(child, "rope_type"):
                tables.append(RotaryTable(child, length, device))
                setattr(parent, name, tables[-1])
    return tables
