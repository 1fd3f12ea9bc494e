"""The block pool: which blocks are free, held (and how often) or cached for the prefix index.

Every block is in exactly one of three states: *held* (one or more references), *cached* (no reference, but the prefix
index knows its content; evicted in least-recently-used order) or *free*.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Protocol

from outrider.errors import CacheError

if TYPE_CHECKING:
    from outrider.cache.budget import CacheBudget

FREE = b"\x01"


class Backing(Protocol):
    """The memory behind the blocks."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        ...

    def give_back(self, blocks: Sequence[int]) -> None:
        """Give the memory of ``blocks``, which nobody reads any more, back to the system where it can be."""
        ...


class BlockPool:
    """Hands out the ids of ``num_blocks`` blocks of ``block_size`` slots each; holds no tensor.

    ``zero_blocks``: called by ``allocate`` with those of its blocks that were freed dirty. It must fill them with
    zeros: a masked slot that holds NaN poisons its tile. ``own_blocks``: as many are this pool's whatever other pools
    of its budget hold (default: all); the others are borrowed. ``backing``: the memory behind the blocks.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        zero_blocks: Callable[[list[int]], object] | None = None,
        *,
        own_blocks: int | None = None,
        backing: Backing | None = None,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise CacheError(f"KV cache: num_blocks={num_blocks} and block_size={block_size} must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.own_blocks = num_blocks if own_blocks is None else own_blocks
        self._zero_blocks = zero_blocks
        self._backing = backing
        self.budget: CacheBudget | None = None
        self._clock: Iterator[int] = count()
        self._touched: set[int] = set()  # blocks that were written since their pages were last given back
        self._on_evict: Callable[[int], None] | None = None
        self._references = [0] * num_blocks
        self._free = bytearray(FREE * num_blocks)
        self._num_free = num_blocks
        self._indexed: set[int] = set()
        self._cached: OrderedDict[int, int] = OrderedDict()  # and when each was let go of
        self._dirty: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that ``allocate`` can hand out: free ones and cached ones, within the budget."""
        own = self._num_free + len(self._cached)
        return own if self.budget is None else min(own, self.budget.room(self))

    @property
    def num_own_free(self) -> int:
        """Blocks that ``allocate`` can hand out without borrowing."""
        return max(0, min(self.num_free, self.own_blocks - self.num_held))

    @property
    def num_cached(self) -> int:
        """Blocks without a reference whose content the prefix index still knows."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks with a reference."""
        return self.num_blocks - self._num_free - len(self._cached)

    @property
    def num_touched(self) -> int:
        """Blocks whose pages lie in memory."""
        return len(self._touched)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block; 1 of a pool with nothing behind it."""
        return 1 if self._backing is None else self._backing.block_bytes

    @property
    def oldest(self) -> int:
        """When the cached block that is next to be forgotten was let go of; there must be one."""
        return next(iter(self._cached.values()))

    def join(self, budget: CacheBudget, clock: Iterator[int]) -> None:
        """Allocate within ``budget`` from now on; ``clock`` tells in which order blocks of all its pools are let go."""
        self.budget, self._clock = budget, clock

    def references(self, block: int) -> int:
        """How many block tables hold ``block``."""
        return self._references[block]

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` positions take."""
        return -(-num_tokens // self.block_size)

    def fits(self, num_new: int, sharing: Iterable[int] = ()) -> bool:
        """True when ``num_new`` blocks can be allocated after the blocks ``sharing`` (a prefix match) were shared."""
        return num_new <= self.num_free - sum(self._references[block] == 0 for block in sharing)

    def allocate(self, num: int, after: int = -1, room: int = 0) -> list[int]:
        """``num`` blocks with one reference each, in runs of consecutive ids where possible.

        ``after``: a block whose successors are preferred, so that a growing sequence stays one run. ``room``: free
        blocks to leave, where possible, behind the run of another sequence so that it can grow. Raises CacheError,
        with nothing changed, when fewer than ``num`` blocks are free or cached.
        """
        if num > self.num_free:
            raise CacheError(
                f"KV cache: {num} blocks of {self.block_size} tokens needed, {self.num_free} of {self.own_blocks} are "
                "free: run fewer or shorter sequences, or make the cache larger"
            )
        while self._num_free < num:
            self.evict_oldest()
        if self.budget is not None:
            self.budget.make_room(self, num)
        blocks = self._take(num, after, room)
        for block in blocks:
            self._references[block] = 1
        self._touched.update(blocks)
        if self.budget is not None:
            self.budget.give_back()
        self._clean(blocks)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One more reference to each block. Raises CacheError for a free block."""
        for block in blocks:
            if self._references[block] == 0:
                if block not in self._cached:
                    raise CacheError(f"KV cache: block {block} is free and cannot be shared")
                del self._cached[block]
            self._references[block] += 1

    def free(self, blocks: Sequence[int], dirty: bool = False) -> None:
        """One reference fewer to each block; without references it becomes cached (if indexed) or free.

        Cached blocks are evicted in the order in which they were freed. ``dirty``: the content may hold NaN; the
        blocks leave the prefix index and are zeroed before reuse. Raises CacheError for a block nobody holds.
        """
        if dirty and self._zero_blocks is None:
            raise CacheError("KV cache: this pool has no zero_blocks callback: give it one to free dirty blocks")
        for block in blocks:
            if self._references[block] == 0:
                raise CacheError(f"KV cache: block {block} was freed more often than it was held")
            if dirty:
                self._dirty.add(block)
                self.evict(block)
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._indexed:
                    self._cached[block] = next(self._clock)
                else:
                    self._release(block)

    def replacement(self, source: int, target: int) -> None:
        """``target`` takes the content of ``source`` for one holder, who lets go of ``source`` (copy on write)."""
        if source in self._dirty:
            self._dirty.add(target)
        self.free([source])

    def watch_evictions(self, on_evict: Callable[[int], None]) -> None:
        """Let the prefix index hear of every indexed block it must forget. A pool has one prefix index."""
        if self._on_evict is not None:
            raise CacheError("KV cache: this pool has a prefix index already")
        self._on_evict = on_evict

    def indexed(self, block: int) -> bool:
        """True when the prefix index knows the content of ``block``: it must not be written."""
        return block in self._indexed

    def indexable(self, block: int) -> bool:
        """True when ``block`` is held and its content is not in doubt."""
        return self._references[block] > 0 and block not in self._dirty

    def index(self, block: int) -> None:
        """The prefix index now knows the ``indexable`` block."""
        if not self.indexable(block):
            raise CacheError(f"KV cache: block {block} is free or dirty and cannot be indexed")
        self._indexed.add(block)

    def unindex(self, block: int) -> None:
        """The prefix index forgot ``block``; a cached block becomes free."""
        self._indexed.discard(block)
        if block in self._cached:
            del self._cached[block]
            self._release(block)

    def evict(self, block: int) -> None:
        """Make the prefix index forget ``block`` and what follows it; nothing happens when it is not indexed."""
        if block in self._indexed and self._on_evict is not None:
            self._on_evict(block)

    def evict_oldest(self) -> None:
        """Forget the cached block that was let go of first; there must be one."""
        self.evict(next(iter(self._cached)))

    def give_back(self) -> None:
        """Give the pages of free blocks back to the system."""
        idle = sorted(block for block in self._touched if self._free[block])
        self._touched.difference_update(idle)
        if self._backing is not None and idle:
            self._backing.give_back(idle)

    def _release(self, block: int) -> None:
        self._free[block] = 1
        self._num_free += 1

    def _clean(self, blocks: Sequence[int]) -> None:
        if not self._dirty:
            return
        dirty = [block for block in blocks if block in self._dirty]
        if dirty and self._zero_blocks is not None:
            self._zero_blocks(dirty)
            self._dirty.difference_update(dirty)

    def _take(self, num: int, after: int, room: int) -> list[int]:
        taken: list[int] = []
        if 0 <= after < self.num_blocks - 1:
            following = self._free[after + 1 : after + 1 + num]
            self._claim(after + 1, len(following) - len(following.lstrip(FREE)), taken)
        num_after = len(taken)
        size = num - num_after
        while len(taken) < num:
            size = min(size, num - len(taken))
            start = self._find(size, room)
            if start < 0:
                size = (size + 1) // 2
                continue
            self._claim(start, size, taken)
        return taken[:num_after] + sorted(taken[num_after:])

    def _find(self, size: int, room: int) -> int:
        if room:
            start = self._free.find(FREE * (size + room))
            if start >= 0:
                behind = start > 0 and self._references[start - 1] > 0
                return start + room if behind else start
        return self._free.find(FREE * size)

    def _claim(self, start: int, num: int, taken: list[int]) -> None:
        self._free[start : start + num] = bytes(num)
        self._num_free -= num
        taken.extend(range(start, start + num))
