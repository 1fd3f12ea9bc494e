"""A run's state in one safetensors file: weights, optimiser moments, step. No pickle; replaced whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from outrider.train import sharded


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is: batches taken, and of which epoch how many."""

    step: int = 0
    epoch: int = 0
    batch: int = 0


def state_of(head: nn.Module, optimiser: torch.optim.AdamW) -> dict[str, Tensor]:
    """All that a run goes on from but its place. All processes must call it."""
    tensors = {f"head.{name}": tensor for name, tensor in sharded.state_of(head).items()}
    for name, parameter in head.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{key}.{name}"] = sharded.whole(torch.as_tensor(value))
    return tensors


def save(path: Path, state: Mapping[str, Tensor], progress: Progress) -> None:
    """Write a state; a stop at any moment leaves the old file or the new one."""
    meta = {"progress": json.dumps([progress.step, progress.epoch, progress.batch])}
    write_tensors(path, state, meta)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: dict[str, str] | None = None) -> None:
    """Write a safetensors file, whole or not at all."""
    temporary = path.with_suffix(".new")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata=meta)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def restore(path: Path, head: nn.Module, optimiser: torch.optim.AdamW) -> Progress:
    """Put the state of ``path`` back; the beginning when there is none."""
    if not path.exists():
        return Progress()
    with safe_open(path, "pt") as file:
        meta = file.metadata() or {}
        names = set(file.keys())  # the file itself is no mapping
        sharded.load_state(head, {name[5:]: file.get_tensor(name) for name in names if name.startswith("head.")})
        for name, parameter in head.named_parameters():
            keys = ("step", "exp_avg", "exp_avg_sq")
            if all(f"{key}.{name}" in names for key in keys):
                values = {key: file.get_tensor(f"{key}.{name}") for key in keys}
                optimiser.state[parameter] = {
                    key: value if key == "step" else sharded.spread(value, parameter) for key, value in values.items()
                }
    return Progress(*json.loads(meta["progress"]))
