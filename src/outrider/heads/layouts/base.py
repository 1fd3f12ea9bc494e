"""What a layout is, and what a checkpoint is before a layout has read it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from outrider.errors import ModelError, why_unread
from outrider.heads.base import DraftHead

_SCALE = "_scale"
_WEIGHTS = ("model.safetensors", "medusa_lm_head.safetensors", "pytorch_model.bin", "medusa_lm_head.pt")
_SHARDS = "model-*-of-*.safetensors"


@dataclass(frozen=True, slots=True)
class Bound:
    """The target that a head is read for: heads of other projects do not say all of it."""

    fingerprint: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``facts``: its config.json; ``tensors`` under the names of the file."""

    name: str
    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> Checkpoint:
        """The files of ``folder``. Raises ModelError where they are missing or cannot be read."""
        try:
            facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{folder} holds no draft head: config.json cannot be read ({why_unread(error)})"
            ) from None
        paths = [folder / name for name in _WEIGHTS if (folder / name).exists()][:1] or sorted(folder.glob(_SHARDS))
        if not paths:
            raise ModelError(f"{folder} holds no draft head: there is none of {', '.join(_WEIGHTS)}")
        tensors: dict[str, Tensor] = {}
        for path in paths:
            try:
                tensors |= _read(path)
            except (OSError, SafetensorError, RuntimeError, ValueError) as error:
                raise ModelError(f"{path} cannot be read ({error})") from None
        return cls(str(folder), facts, tensors)

    def write(self, folder: Path) -> None:
        """As ``config.json`` and ``model.safetensors`` in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        (folder / "model.safetensors").write_bytes(save(tensors))  # save_file lets nobody else read it
        (folder / "config.json").write_text(json.dumps(dict(self.facts), indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Tensor]:
    """A file's tensors, mapped into memory where that is possible."""
    pickled = path.suffix != ".safetensors"
    out: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True) if pickled else load_file(path)
    return out


class Layout(ABC):
    """One way to store heads."""

    name: str
    kinds: tuple[str, ...]  # of heads that it can store

    @abstractmethod
    def claims(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint looks like one of this layout."""

    @abstractmethod
    def read(self, checkpoint: Checkpoint, target: Bound | None) -> DraftHead:
        """The head. Raises ModelError for what is missing, surplus, misshapen, not supported, or not of ``target``;
        layouts that do not name their target need one."""

    @abstractmethod
    def write(self, head: DraftHead, target: str) -> Checkpoint:
        """The head as this layout stores it, for the model named ``target``."""


def needed(target: Bound | None, name: str) -> Bound:
    """``target``. Raises ModelError where there is none."""
    if target is None:
        raise ModelError(f"{name} does not say which target it is for: name it (--target)")
    return target


def fill(head: DraftHead, tensors: Mapping[str, Tensor], name: str) -> DraftHead:
    """``head`` with ``tensors``. Raises ModelError for missing, surplus or misshapen ones."""
    mine = head.state_dict()
    if problems := [
        *(f"lacks {key}" for key in mine.keys() - tensors.keys()),
        *(f"has {key}, which no such head has" for key in tensors.keys() - mine.keys()),
        *(
            f"{key} is {list(tensors[key].shape)}, not {list(mine[key].shape)}"
            for key in mine.keys() & tensors.keys()
            if mine[key].shape != tensors[key].shape
        ),
    ]:
        raise ModelError(f"{name}: {'; '.join(sorted(problems))}")
    head.load_state_dict(dict(tensors))
    return head


def half(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in half precision, ids as they are."""
    return {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def eight_bit(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8 with a scale a row (`NAME_scale`), the rest as ``half`` has it."""
    out = half(tensors)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.ndim == 2:
            scale = (tensor.float().abs().amax(1, keepdim=True) / 127).clamp_min(1e-8).half()
            out[name] = (tensor.float() / scale.float()).round().clamp(-127, 127).to(torch.int8)
            out[name + _SCALE] = scale
    return out


def is_eight_bit(tensors: Mapping[str, Tensor]) -> bool:
    """Whether some of them are matrices of ``eight_bit``."""
    return any(name.endswith(_SCALE) for name in tensors)


def from_eight_bit(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse, in float32; what is no such matrix stays as it is."""
    out = {name: tensor for name, tensor in tensors.items() if not name.endswith(_SCALE)}
    for name, scale in tensors.items():
        matrix = out.get(name.removesuffix(_SCALE)) if name.endswith(_SCALE) else None
        if matrix is not None and len(matrix) == len(scale):  # else it is misshapen, and ``fill`` says so
            out[name.removesuffix(_SCALE)] = matrix.float() * scale.float()
    return out


def check_map(d2t: Tensor, t2d: Tensor | None, vocab_size: int, name: str) -> None:
    """Raise ModelError unless ``d2t`` [draft vocab] holds offsets to distinct ids, those that ``t2d`` marks."""
    ids = d2t.long() + torch.arange(len(d2t))
    inside = bool((ids >= 0).all()) and bool((ids < vocab_size).all())
    if inside and len(set(ids.tolist())) == len(ids) and (t2d is None or bool(t2d.bool()[ids].all())):
        return
    absolute = d2t.long()
    if bool((absolute.diff() > 0).all()) and int(absolute[-1]) < vocab_size:
        raise ModelError(f"{name}: d2t holds target ids; it must hold offsets, target id = i + d2t[i]")
    raise ModelError(f"{name}: d2t does not map to distinct ids of a vocabulary of {vocab_size} that t2d marks")
