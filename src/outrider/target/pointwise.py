"""Transcendental functions whose bits do not depend on where an element stands.

On the CPU torch computes them in vector code, but the last elements of each thread's share in scalar code, which
rounds differently: the same number then gives other bits with another number of rows or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_PIECE = 32768  # torch gives no second thread a share of fewer elements
_VECTOR = 64  # a multiple of what torch's loops take at a time on any processor
_NAMES = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "tanh",
    "sigmoid",
    "erf",
    "erfc",
    "sin",
    "cos",
    "softplus",
    "silu",
    "gelu",
    "mish",
    "elu",
    "selu",
    "celu",
    "logsigmoid",
)
_PLACES = (torch, Tensor, torch.nn.functional)
_FUNCTIONS = frozenset(getattr(place, name) for place in _PLACES for name in _NAMES if hasattr(place, name))


def by_pieces(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x) for an elementwise ``function``, on the CPU in whole vectors that threads do not share."""
    if x.device.type != "cpu" or x.numel() == 0:
        return function(x)
    flat = x.reshape(-1)
    short = -flat.shape[0] % _VECTOR
    if short:
        flat = torch.cat([flat, flat.new_zeros(short)])
    if flat.shape[0] <= _PIECE or torch.get_num_threads() == 1:
        out = function(flat)
    else:
        out = torch.cat([function(flat[start : start + _PIECE]) for start in range(0, flat.shape[0], _PIECE)])
    return out[: x.numel()].view(x.shape)


class RowExact(TorchFunctionMode):
    """While entered, torch's transcendental functions of floats go through ``by_pieces``."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _FUNCTIONS or not args or not args[0].is_floating_point():
            return func(*args, **kwargs)
        return by_pieces(lambda x: func(x, *args[1:], **kwargs), args[0])
