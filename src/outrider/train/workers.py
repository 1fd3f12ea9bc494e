"""Processes that train one head together, as `torchrun` starts them: each takes its part of every batch.

Gradients and counts are summed over all, so that a step is that of one process over the whole batch, but for the order
of sums.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

T = TypeVar("T")
_PATIENCE = timedelta(days=7)  # the others wait while the first one answers all prompts


@dataclass(frozen=True, slots=True)
class Workers:
    """``rank`` of ``count`` processes."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls) -> Workers:
        """The processes that `torchrun` started; this one alone where it did not."""
        if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=_PATIENCE)
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this one writes files and speaks."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """Where this one computes: of several, each takes the GPU of its place on the machine."""
        place = f"cuda:{os.environ.get('LOCAL_RANK', self.rank)}" if name == "cuda" and self.count > 1 else name
        return torch.device(place)

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of a batch."""
        return items[self.rank :: self.count]

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.count > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def shard(self, module: nn.Module) -> None:
        """Spread the weights of ``module``, and so what is computed of each, over all processes (FSDP2).

        Gradients are then summed without ``sum``; see ``outrider.train.sharded`` for what its weights have become.
        """
        if self.count == 1:
            return
        fully_shard(module, mesh=init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (self.count,)))
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum

    def leave(self) -> None:
        """End this process, one of several, when all are done.

        At once: a process of a group that takes its modules down aborts now and then (gloo, torch 2.13, Python 3.11),
        and `torchrun` then calls the run a failure.
        """
        if self.count > 1:
            dist.barrier()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def once(self, call: Callable[[], None]) -> None:
        """``call`` in the first process, while the others wait."""
        if self.first:
            call()
        if self.count > 1:
            dist.barrier()
