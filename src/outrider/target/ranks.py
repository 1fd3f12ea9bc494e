"""Processes that hold one model together, as `torchrun` starts them: the first one leads, the others follow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from outrider.errors import ConfigError

_PATIENCE = timedelta(days=7)  # the others wait while nobody asks anything


@dataclass(frozen=True, slots=True)
class Ranks:
    """``rank`` of ``count`` processes."""

    rank: int
    count: int

    @classmethod
    def join(cls, count: int, device: torch.device) -> Ranks:
        """The ``count`` processes that `torchrun` started. Raises ConfigError for another number of them."""
        asked = f"tensor_parallel_size={count}"
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise ConfigError(
                f"{asked} needs {count} processes: start them with torchrun, such as `torchrun --nproc-per-node "
                f"{count} -m outrider generate MODEL PROMPT --tensor-parallel-size {count}`"
            )
        if (started := int(os.environ["WORLD_SIZE"])) != count:
            raise ConfigError(f"{asked}, and torchrun started {started} processes: make the numbers equal")
        there = torch.accelerator.current_accelerator()
        if device.type != (there.type if there is not None else "cpu"):
            raise ConfigError(f"{asked} on device={device}: transformers spreads over {there}; set device={there}")
        if dist.is_initialized():
            raise ConfigError(f"{asked}: these processes hold a model together already; one a run is possible")
        dist.init_process_group("gloo" if device.type == "cpu" else None, timeout=_PATIENCE)
        return cls(dist.get_rank(), count)

    def send(self, message: object) -> None:
        """Tell all others, from the first."""
        dist.broadcast_object_list([message], src=0, device=torch.device("cpu"))

    def receive(self) -> Any:
        """What the first one tells next."""
        box: list[Any] = [None]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first process goes ahead: it may fetch or convert what the others then find."""
        if self.rank:
            dist.barrier()
        yield
        if not self.rank:
            dist.barrier()

    def leave(self) -> None:
        """Part, all at once."""
        dist.barrier()
        dist.destroy_process_group()
