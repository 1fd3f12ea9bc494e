"""Weights that may be spread over several processes: each as one piece, and one piece as each is spread."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """``tensor`` in one piece. All processes must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor``, which all processes have in one piece, where and as ``like`` is."""
    tensor = tensor.to(like.device)
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)  # nothing is sent


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """The state of ``module`` with whole tensors. All processes must call it."""
    return {name: whole(tensor) for name, tensor in module.state_dict().items()}


def load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Put such a state back."""
    own = module.state_dict()
    module.load_state_dict({name: spread(tensor, own[name]) for name, tensor in state.items()})
