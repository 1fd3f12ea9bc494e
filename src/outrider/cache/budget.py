"""One budget of bytes for the caches of target and draft models, from which blocks are taken by demand.

Every pool has blocks of its own; the budget is what these take together. A pool that was made larger than that (the
target's, where pages can be given back) borrows what the others leave idle: while nobody drafts with a model, its share
holds more of the target's tokens. A draft's pool never takes more than its own blocks, so that the target can always
have its own; a draft that finds its share lent out goes without until there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from outrider.cache.pool import BlockPool


class CacheBudget:
    """``pools``: all that share it. From now on they allocate within it and forget cached prefixes in one order."""

    def __init__(self, pools: Sequence[BlockPool]) -> None:
        self._pools = list({id(pool): pool for pool in pools}.values())
        self.num_bytes = sum(pool.own_blocks * pool.block_bytes for pool in self._pools)
        clock = count()
        for pool in self._pools:
            pool.join(self, clock)

    @property
    def num_held(self) -> int:
        """Bytes of blocks that sequences hold."""
        return sum(pool.num_held * pool.block_bytes for pool in self._pools)

    @property
    def usage(self) -> float:
        """The share of the budget that sequences hold."""
        return self.num_held / self.num_bytes

    def room(self, pool: BlockPool) -> int:
        """Blocks that ``pool`` can hold beside all that are held now; cached ones make way."""
        return (self.num_bytes - self.num_held) // pool.block_bytes

    def make_room(self, pool: BlockPool, num: int) -> None:
        """Forget cached prefixes, the oldest of all pools first, until ``num`` more blocks of ``pool``, which has
        ``room`` for them, fit beside held and cached ones."""
        wanted = num * pool.block_bytes
        while self._num_kept() + wanted > self.num_bytes:
            oldest = min((each for each in self._pools if each.num_cached), key=lambda each: each.oldest)
            oldest.evict_oldest()

    def give_back(self) -> None:
        """After an allocation: give the pages of free blocks back where more lie in memory than the budget holds."""
        if sum(pool.num_touched * pool.block_bytes for pool in self._pools) > self.num_bytes:
            for pool in self._pools:
                pool.give_back()

    def _num_kept(self) -> int:
        return sum((pool.num_held + pool.num_cached) * pool.block_bytes for pool in self._pools)
