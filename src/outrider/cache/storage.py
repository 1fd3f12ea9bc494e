"""The KV storage: one tensor that holds the keys and values of every slot of every layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from outrider.errors import CacheError

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


def bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of KV that one position takes: layers * 2 (key and value) * heads * head_dim * bytes of an element."""
    return num_layers * 2 * num_kv_heads * head_dim * dtype.itemsize


class KVStorage:
    """``kv`` [num_layers, 2, num_slots, num_kv_heads, head_dim]: keys at index 0 and values at index 1, zeroed.

    ``num_slots`` is the pool's num_blocks * block_size; slot ``block * block_size + offset`` belongs to ``block``.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        block_size: int,
    ) -> None:
        if num_slots % block_size:
            raise CacheError(f"KV cache: num_slots={num_slots} is no multiple of block_size={block_size}")
        self.kv = zeros((num_layers, 2, num_slots, num_kv_heads, head_dim), dtype, torch.device(device))
        self.blocks = self.kv.view(num_layers, 2, num_slots // block_size, block_size, num_kv_heads, head_dim)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor (on the CPU, pages that were never written take no memory)."""
        return self.kv.numel() * self.kv.element_size()

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots ``source`` to slots ``target`` in all layers; all are read before any is written."""
        if len(source) != len(target):
            raise CacheError(f"KV cache: {len(source)} slots cannot be moved to {len(target)}")
        pairs = [(old, new) for old, new in zip(source, target, strict=True) if old != new]
        self._copy(self.kv, pairs)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, given as (source, target)."""
        self._copy(self.blocks, pairs)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Fill ``blocks`` with zeros."""
        if blocks:
            self.blocks.index_fill_(2, torch.tensor(blocks, device=self.kv.device), 0)

    def _copy(self, tensor: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        if pairs:
            source, target = torch.tensor(pairs, device=tensor.device).unbind(1)
            tensor.index_copy_(2, target, tensor.index_select(2, source))


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A zeroed tensor. On the CPU its pages are mapped when first written, which torch.zeros does not promise."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = torch.from_numpy(np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8))
    start = -raw.data_ptr() % ALIGNMENT
    return raw[start : start + num_bytes].view(dtype).view(shape)
