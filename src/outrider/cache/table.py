"""The block table of one sequence: which slot holds the KV of which position.

One invariant: positions ``[0, length)`` are committed and their blocks may be shared; positions ``[length, capacity)``
are reserved for rows that are being computed and lie in blocks that nobody else reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from outrider.cache.pool import BlockPool
from outrider.cache.prefix import PrefixEntry, PrefixIndex
from outrider.errors import CacheError


class BlockTable:
    """Blocks of one sequence, in position order, and ``length``, the number of positions whose KV is committed."""

    def __init__(self, pool: BlockPool, index: PrefixIndex | None = None) -> None:
        self._pool = pool
        self._index = index
        self._size = pool.block_size
        self.blocks: list[int] = []
        self.length = 0
        self.contiguous = True  # the slots form one run, so a zero-copy view of the KV exists
        self._chain: list[PrefixEntry] = []
        self._slots = np.empty(0, dtype=np.int32)
        self._tensor = torch.from_numpy(self._slots)

    @property
    def capacity(self) -> int:
        """Positions that have a slot."""
        return len(self.blocks) * self._size

    def reuse(self, tokens: Sequence[int], salt: str = "") -> int:
        """Start an empty table with the indexed prefix of ``tokens``; returns how many positions that commits."""
        if self._index is None:
            return 0
        if self.blocks:
            raise CacheError("KV cache: a prefix can be reused only by an empty block table")
        blocks = self._index.match(tokens, salt)
        self._pool.share(blocks)
        self._append(blocks)
        self._chain = [self._index.entry(block) for block in blocks]
        self.length = self.capacity
        self._index.record(len(tokens), self.length)
        return self.length

    def num_needed(self, num_tokens: int) -> int:
        """Blocks that ``reserve(num_tokens)`` would allocate."""
        grow = max(0, self._pool.blocks_for(num_tokens) - len(self.blocks))
        return grow + (num_tokens > self.length and self._boundary_is_shared())

    def reserve(self, num_tokens: int) -> list[tuple[int, int]]:
        """Make positions ``[length, num_tokens)`` writable, growing the table where needed.

        Returns (source, target) blocks whose content the storage must copy (copy on write) before anything else is
        done with the pool. Raises CacheError, with nothing changed, when blocks are short.
        """
        if num_tokens <= self.length:
            return []
        pool = self._pool
        grow = max(0, pool.blocks_for(num_tokens) - len(self.blocks))
        shared = self._boundary_is_shared()
        boundary = self.length // self._size
        if grow or shared:
            last = self.blocks[-1] if self.blocks and not shared else -1
            fresh = pool.allocate(grow + shared, after=last, room=0 if self.blocks else grow)
        pairs = []
        if shared:
            source, target = self.blocks[boundary], fresh.pop(0)
            pool.replacement(source, target)
            self._replace(boundary, target)
            pairs.append((source, target))
        elif boundary < len(self.blocks):
            pool.evict(self.blocks[boundary])
        if grow:
            self._append(fresh)
        return pairs

    def slots(self, start: int, count: int) -> list[int]:
        """Slots (block * block_size + offset) of positions ``[start, start + count)``."""
        if start < 0 or count < 0 or start + count > self.capacity:
            raise CacheError(f"KV cache: positions {start} to {start + count} are not reserved of {self.capacity}")
        slots: list[int] = self._slots[start : start + count].tolist()
        return slots

    def slots_tensor(self) -> Tensor:
        """Slots of all positions, int32 [capacity], on the CPU; valid until the table changes its blocks."""
        return self._tensor

    def commit(self, length: int) -> None:
        """Positions ``[0, length)`` are committed, what lies beyond is forgotten.

        Blocks beyond stay reserved for the next step's drafts, except when ``length`` shrinks (rollback), where they
        may be shared and are let go.
        """
        if not 0 <= length <= self.capacity:
            raise CacheError(f"KV cache: length {length} cannot be committed with a capacity of {self.capacity}")
        shrinks = length < self.length
        self.length = length
        if shrinks:
            del self._chain[length // self._size :]
            self.trim()

    def publish(self, tokens: Sequence[int], salt: str = "") -> None:
        """Let the prefix index know the full committed blocks; ``tokens[i]`` is the token of position ``i``.

        Tokens beyond ``length`` (drafts, or the root) are never published. Use one ``salt`` for the whole life of a
        sequence.
        """
        index, size = self._index, self._size
        if index is None or self.length // size <= len(self._chain):
            return
        if len(tokens) < self.length:
            raise CacheError(f"KV cache: {len(tokens)} tokens given for {self.length} committed positions")
        if self._chain and not self._chain[-1].alive:
            self._chain.clear()
        for position in range(len(self._chain), self.length // size):
            parent = self._chain[-1] if self._chain else index.root(salt)
            content = tokens[position * size : (position + 1) * size]
            entry = index.insert(parent, content, self.blocks[position])
            if entry is None:
                return
            self._chain.append(entry)

    def fork(self) -> BlockTable:
        """A table with the same committed positions. Blocks are shared; whoever writes a shared one first copies it."""
        child = BlockTable(self._pool, self._index)
        blocks = self.blocks[: self._pool.blocks_for(self.length)]
        self._pool.share(blocks)
        child._append(blocks)
        child.length = self.length
        child._chain = list(self._chain)
        return child

    def trim(self) -> None:
        """Let go of the blocks that hold no committed position."""
        keep = self._pool.blocks_for(self.length)
        if keep < len(self.blocks):
            self._pool.free(self.blocks[: keep - 1 if keep else None : -1])
            del self.blocks[keep:]
            self._refresh()

    def release(self, dirty: bool = False) -> None:
        """Let go of all blocks. ``dirty``: the sequence failed and its KV may hold NaN."""
        self._pool.free(self.blocks[::-1], dirty)
        self.blocks = []
        self.length = 0
        self._chain = []
        self._refresh()

    def _boundary_is_shared(self) -> bool:
        boundary = self.length // self._size
        return boundary < len(self.blocks) and self._pool.references(self.blocks[boundary]) > 1

    def _append(self, blocks: Sequence[int]) -> None:
        if not blocks:
            return
        old, size = self.capacity, self._size
        previous = self.blocks[-1] if self.blocks else blocks[0] - 1
        self.contiguous &= list(blocks) == list(range(previous + 1, previous + 1 + len(blocks)))
        self.blocks.extend(blocks)
        if self.capacity > len(self._slots):
            grown = np.empty(max(self.capacity, 2 * len(self._slots)), dtype=np.int32)
            grown[:old] = self._slots[:old]
            self._slots = grown
        starts = np.asarray(blocks, dtype=np.int32)[:, None] * size
        self._slots[old : self.capacity] = (starts + np.arange(size, dtype=np.int32)).ravel()
        self._refresh_tensor()

    def _replace(self, position: int, block: int) -> None:
        self.blocks[position] = block
        start = position * self._size
        first = block * self._size
        self._slots[start : start + self._size] = np.arange(first, first + self._size, dtype=np.int32)
        self._refresh()

    def _refresh(self) -> None:
        first = self.blocks[0] if self.blocks else 0
        self.contiguous = self.blocks == list(range(first, first + len(self.blocks)))
        self._refresh_tensor()

    def _refresh_tensor(self) -> None:
        self._tensor = torch.from_numpy(self._slots)[: self.capacity]
