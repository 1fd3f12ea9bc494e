"""Checks on loaded weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from outrider.errors import ModelError

FLOAT16_MAX = 65504.0


def check_finite(name: str, model: nn.Module) -> None:
    """Raise ModelError when a parameter of ``model`` holds NaN or infinity."""
    for parameter, low, high in _extremes(model):
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ModelError(
                f"model={name!r} holds NaN or infinity in {parameter}: fetch it again or use another checkpoint"
            )


def check_range(model: nn.Module, dtype: torch.dtype) -> None:
    """Raise ModelError when ``dtype`` is float16 and a parameter of ``model`` is beyond 65504 or NaN."""
    if dtype != torch.float16:
        return
    for parameter, low, high in _extremes(model):
        if not max(-low, high) <= FLOAT16_MAX:  # NaN as well
            raise ModelError(
                f"dtype=float16 cannot hold {max(-low, high):.4g} in {parameter} (its largest value is 65504): "
                "set dtype=bfloat16 or dtype=float32"
            )


def own_part(weight: Tensor) -> Tensor:
    """What this process holds of a weight that may be spread over several."""
    part: Tensor = weight.to_local() if hasattr(weight, "to_local") else weight  # a DTensor, which is slow to import
    return part


def _extremes(model: nn.Module) -> list[tuple[str, float, float]]:
    # aminmax makes no copy and hands NaN on
    weights = [(name, own_part(weight.detach())) for name, weight in model.named_parameters()]
    pairs = [(name, torch.aminmax(weight)) for name, weight in weights if weight.numel()]
    return [(name, float(pair.min), float(pair.max)) for name, pair in pairs]
