"""Mixture-of-experts layers over packed weights, summed in router order so that a row's bits are its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from outrider.target.packed import PackedLinear, row_tile
from outrider.target.packer import Packer


class PackedExperts(nn.Module):
    """The experts of one layer: transformers keeps them as [experts, out, in] parameters; here each is packed.

    A row's result is the sum over its chosen experts in the router's order, whatever other rows chose.
    """

    def __init__(self, experts: Any, packer: Packer) -> None:
        super().__init__()
        count = experts.gate_up_proj.shape[0]
        self.apply_gate = experts._apply_gate
        self.gate_up = nn.ModuleList(packer.matrix(experts.gate_up_proj[i]) for i in range(count))
        self.down = nn.ModuleList(packer.matrix(experts.down_proj[i]) for i in range(count))
        del experts.gate_up_proj, experts.down_proj  # packed now: give the memory back

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """hidden_states [rows, hidden], top_k_index and top_k_weights [rows, k] -> [rows, hidden]."""
        rows, k = top_k_index.shape
        parts = hidden_states.new_zeros(rows, k, hidden_states.shape[1])
        chosen: set[int] = set(top_k_index.flatten().tolist())
        for expert in sorted(chosen):
            row, at = torch.where(top_k_index == expert)
            result = self.down[expert](self.apply_gate(self.gate_up[expert](hidden_states[row])))
            parts[row, at] = result * top_k_weights[row, at, None]
        total = parts[:, 0]
        for place in range(1, k):
            total = total + parts[:, place]
        return total


class TiledRouter(nn.Module):
    """A router called on tiles of rows in which the bits of its matrix product do not depend on the other rows."""

    def __init__(self, router: Any) -> None:
        super().__init__()
        self.router = router
        out_features, in_features = router.weight.shape
        key = f"router:{out_features}x{in_features}"
        found = row_tile(lambda weight: partial(nn.functional.linear, weight=weight), router.weight.shape, key)
        self.tile, self.pad = found or (1, 1)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("router"), name)  # layers read its biases and counts

    def forward(self, hidden_states: Tensor, *rest: Any) -> Any:
        """As the wrapped router: a tensor, or a tuple of them, with one row per row of ``hidden_states``."""
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        pieces = []
        single = False
        for start in range(0, x.shape[0], self.tile):
            part = x[start : start + self.tile]
            short = -part.shape[0] % self.pad
            whole = torch.cat([part, part.new_zeros(short, part.shape[1])]) if short else part
            outs = self.router(whole, *rest)
            single = isinstance(outs, Tensor)
            pieces.append([out[: part.shape[0]] for out in ((outs,) if single else outs)])
        columns = tuple(torch.cat(column) for column in zip(*pieces, strict=True))
        return columns[0] if single else columns


_USUAL = {
    "is_concatenated": True,
    "is_transposed": False,
    "has_bias": False,
    "has_gate": True,
    "has_post_expert_norm": False,
}


def replace_experts(module: nn.Module, packer: Packer) -> list[PackedLinear]:
    """Put packed experts and tiled routers into every mixture layer below ``module``; the packed matrices."""
    packed: list[PackedLinear] = []
    for child in list(module.modules()):
        experts, gate = getattr(child, "experts", None), getattr(child, "gate", None)
        if experts is None or getattr(experts, "gate_up_proj", None) is None:
            continue
        if any(getattr(experts, name, usual) != usual for name, usual in _USUAL.items()):
            continue  # another layout: it stays with transformers, and the model is not exact
        child.experts = PackedExperts(experts, packer)
        packed.extend(m for m in child.experts.modules() if isinstance(m, PackedLinear))
        if packer.exact and getattr(gate, "weight", None) is not None and not isinstance(gate, nn.Linear):
            child.gate = TiledRouter(gate)
    return packed
