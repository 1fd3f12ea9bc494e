"""The KV storage: the keys and values of every slot of every layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.cache.pages import Pages, can_give_back, zeros
from outrider.cache.pool import BlockPool
from outrider.errors import CacheError

TILE = 16  # slots whose keys lie side by side on the CPU: the lanes of a vector (kTile in native/attention.h)


def bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of KV that one position takes: layers * 2 (key and value) * heads * head_dim * bytes of an element."""
    return num_layers * 2 * num_kv_heads * head_dim * dtype.itemsize


class KVStorage:
    """Keys and values, zeroed. ``num_slots`` is the pool's num_blocks * block_size; slot
    ``block * block_size + offset`` belongs to ``block``.

    ``keys`` [num_layers, tiles, num_kv_heads, head_dim, tile]: a vector of the kernels holds one dimension of ``tile``
    consecutive slots; on other devices a tile is one slot. ``values`` [num_layers, num_slots, num_kv_heads, head_dim].
    ``taps`` [num_slots, layers, hidden] or None: outputs of the layers that heads read, so that a cached prefix serves
    them too.
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
        self.device, self.dtype, self.block_size = torch.device(device), dtype, block_size
        self._tile = TILE if self.device.type in ("cpu", "meta") else 1
        tiles = -(-num_slots // self._tile)
        keys = zeros((num_layers, tiles, num_kv_heads, head_dim, self._tile), dtype, self.device)
        values = zeros((num_layers, num_slots, num_kv_heads, head_dim), dtype, self.device)
        self.keys, self.values = keys.tensor, values.tensor
        self._pages: list[tuple[Pages, int]] = [(keys, num_layers), (values, num_layers)]  # and copies of all slots
        self.taps: Tensor | None = None
        self._by_slot = self.keys.permute(0, 1, 4, 2, 3)  # [num_layers, tiles, tile, num_kv_heads, head_dim]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors (on the CPU, pages that were never written take no memory)."""
        return self.keys.nbytes + self.values.nbytes + (0 if self.taps is None else self.taps.nbytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.num_bytes // (self.values.shape[1] // self.block_size)

    def new_pool(self, own_tokens: int | None = None) -> BlockPool:
        """The pool of its blocks. ``own_tokens``: as many are not borrowed (default: all)."""
        own = None if own_tokens is None else own_tokens // self.block_size
        blocks = self.values.shape[1] // self.block_size
        return BlockPool(blocks, self.block_size, zero_blocks=self.zero_blocks, own_blocks=own, backing=self)

    @property
    def head_shape(self) -> tuple[int, int]:
        """(num_kv_heads, head_dim)."""
        return self.values.shape[2], self.values.shape[3]

    def read(self, layer: int | slice, slots: Tensor | Sequence[int] | slice) -> tuple[Tensor, Tensor]:
        """Keys and values of ``slots``, each [slots, heads, dim], or [layers, slots, heads, dim] of several layers.

        A slice is read in place where slots lie one behind the other: values always, keys without tiles.
        """
        if isinstance(slots, slice):
            at = torch.arange(slots.start, slots.stop, device=self.device)
            keys = self._by_slot[layer, slots, 0] if self._tile == 1 else self._keys_at(layer, at)
            return keys, self.values[layer, slots]
        at = self._index(slots)
        return self._keys_at(layer, at), self.values[layer, at]

    def _keys_at(self, layer: int | slice, at: Tensor) -> Tensor:
        return self._by_slot[layer, at // self._tile, at % self._tile]

    def write(
        self, layer: int | slice, slots: Tensor | Sequence[int], keys: Tensor | float, values: Tensor | float
    ) -> None:
        """The reverse of ``read``; a number fills."""
        at = self._index(slots)
        where = (layer, at // self._tile, at % self._tile)
        self._by_slot[where] = keys.to(self.dtype) if isinstance(keys, Tensor) else keys
        self.values[layer, at] = values.to(self.dtype) if isinstance(values, Tensor) else values

    def keep_taps(self, num_layers: int, hidden: int) -> None:
        """From now on there is room for the outputs of ``num_layers`` layers at every slot."""
        taps = zeros((self.values.shape[1], num_layers, hidden), tap_dtype(self.dtype), self.device)
        self.taps = taps.tensor
        self._pages.append((taps, 1))

    @property
    def num_tapped(self) -> int:
        """Layers whose outputs there is room for."""
        return 0 if self.taps is None else self.taps.shape[1]

    def write_taps(self, slots: Tensor | Sequence[int], rows: Tensor) -> None:
        """Keep ``rows`` [slots, layers * hidden], where there is room for so many layers."""
        if self.taps is not None and rows.shape[1] <= self.num_tapped * self.taps.shape[2]:
            kept = rows.to(self.taps).view(len(rows), -1, self.taps.shape[2])
            self.taps[self._index(slots), : kept.shape[1]] = kept

    def read_taps(self, slots: Sequence[int], num_layers: int) -> Tensor:
        """What was kept of ``num_layers`` layers [slots, layers * hidden], float32. Raises CacheError for more layers
        than there is room for."""
        if self.taps is None or num_layers > self.num_tapped:
            raise CacheError(f"KV cache: outputs of {num_layers} layers are not kept, but of {self.num_tapped}")
        return self.taps[self._index(slots), :num_layers].flatten(1).float()

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots ``source`` to slots ``target``, in all layers and taps; all are read before any is written."""
        if len(source) != len(target):
            raise CacheError(f"KV cache: {len(source)} slots cannot be moved to {len(target)}")
        pairs = [(old, new) for old, new in zip(source, target, strict=True) if old != new]
        if pairs:
            every = slice(None)
            old, new = (self._index(slots) for slots in zip(*pairs, strict=True))
            self.write(every, new, *self.read(every, old))
            if self.taps is not None:
                self.taps[new] = self.taps[old]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, given as (source, target)."""
        self.move(self._slots([old for old, _ in pairs]), self._slots([new for _, new in pairs]))

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Fill ``blocks`` with zeros."""
        if blocks:
            self.write(slice(None), self._slots(blocks), 0, 0)
            if self.taps is not None:
                self.taps[self._index(self._slots(blocks))] = 0

    def give_back(self, blocks: Sequence[int]) -> None:
        """Give the pages of ``blocks`` (ascending), which nobody reads any more, back to the system where it can be."""
        if not can_give_back(self.device) or self.block_size % self._tile:
            return
        for first, last in _runs(blocks):
            for pages, copies in self._pages:
                size = pages.tensor.nbytes // copies
                block = size // (self.values.shape[1] // self.block_size)
                for start in range(0, copies * size, size):
                    pages.give_back(start + first * block, start + (last + 1) * block)

    def _slots(self, blocks: Sequence[int]) -> list[int]:
        size = self.block_size
        return [slot for block in blocks for slot in range(block * size, (block + 1) * size)]

    def _index(self, slots: Tensor | Sequence[int]) -> Tensor:
        return torch.as_tensor(slots, device=self.device).long()


def tap_dtype(dtype: torch.dtype) -> torch.dtype:
    """What hidden states are kept in beside keys and values of ``dtype``: as many bytes, and the range of float32."""
    return torch.bfloat16 if dtype.itemsize == 2 else dtype


def _runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of the runs of consecutive ``blocks``, which ascend."""
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block - 1:
            runs[-1] = (runs[-1][0], block)
        else:
            runs.append((block, block))
    return runs
