"""Zeroed tensors on pages that are mapped when first written and, where the system can, given back when out of use."""

from __future__ import annotations

import math
import mmap
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
_HUGE = 4 << 20  # bytes from which on the system may use large pages


def can_give_back(device: torch.device) -> bool:
    """Whether pages of a tensor on ``device`` can be given back while the tensor lives."""
    return device.type == "cpu" and sys.platform == "linux"


@dataclass(slots=True)
class Pages:
    """A tensor, and the mapping behind it where its pages can be given back."""

    tensor: Tensor
    mapping: mmap.mmap | None = None

    def give_back(self, start: int, stop: int) -> None:
        """The whole pages among bytes ``[start, stop)`` of the tensor go back to the system and are zeros from then on;
        what lies on the pages at both ends stays as it is."""
        if self.mapping is None:
            return
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            self.mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Pages:
    """A zeroed tensor. On the CPU its pages are mapped when first written, which torch.zeros does not promise."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if can_give_back(device) and num_bytes:
        mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if num_bytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        return Pages(torch.frombuffer(mapping, dtype=torch.uint8).view(dtype).view(shape), mapping)
    if device.type != "cpu":
        return Pages(torch.zeros(shape, dtype=dtype, device=device))
    raw = torch.from_numpy(np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8))
    start = -raw.data_ptr() % ALIGNMENT
    return Pages(raw[start : start + num_bytes].view(dtype).view(shape))
