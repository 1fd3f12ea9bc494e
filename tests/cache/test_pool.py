"""The block pool: states of a block, contiguity, eviction order, dirty blocks, errors."""

from __future__ import annotations

import pytest

from outrider.cache import BlockPool, PrefixIndex
from outrider.errors import CacheError


def indexed_pool(num_blocks: int = 4) -> tuple[BlockPool, PrefixIndex]:
    pool = BlockPool(num_blocks, 2, lambda blocks: None)
    return pool, PrefixIndex(pool)


def test_blocks_come_ascending_in_one_run() -> None:
    pool = BlockPool(8, 4)
    assert pool.allocate(3) == [0, 1, 2]
    pool.free([0])
    assert pool.allocate(2) == [3, 4], "a run of two starts behind the single free block"
    assert pool.allocate(4) == [0, 5, 6, 7], "pieces when no run is long enough"


def test_growth_follows_the_last_block() -> None:
    pool = BlockPool(8, 4)
    first = pool.allocate(2)
    pool.allocate(1, after=first[-1])
    assert pool.allocate(1) == [3]
    pool.free([2])
    assert pool.allocate(2, after=1) == [2, 4]


def test_room_is_left_behind_a_held_run() -> None:
    pool = BlockPool(12, 4)
    assert pool.allocate(2, room=2) == [0, 1], "nobody grows into the start of the pool"
    assert pool.allocate(2, room=2) == [4, 5]
    assert pool.allocate(2, after=1) == [2, 3]
    assert pool.allocate(5, room=5) == [6, 7, 8, 9, 10], "room is a wish"


def test_short_of_blocks_changes_nothing() -> None:
    pool, index = indexed_pool()
    blocks = pool.allocate(3)
    index.insert(index.root(), [1, 2], blocks[0])
    pool.free([blocks[0]])
    with pytest.raises(CacheError, match="3 blocks of 2 tokens needed, 2 of 4 are free"):
        pool.allocate(3)
    assert (pool.num_free, pool.num_cached, len(index)) == (2, 1, 1)


def test_references_count_holders() -> None:
    pool = BlockPool(4, 4)
    (block,) = pool.allocate(1)
    pool.share([block])
    assert pool.references(block) == 2
    pool.free([block])
    assert pool.num_free == 3
    pool.free([block])
    assert pool.num_free == 4
    with pytest.raises(CacheError, match="freed more often"):
        pool.free([block])
    with pytest.raises(CacheError, match="cannot be shared"):
        pool.share([block])


def test_least_recently_freed_block_is_evicted_first() -> None:
    pool, index = indexed_pool(3)
    blocks = pool.allocate(3)
    for block in blocks:
        index.insert(index.root(), [block, block], block)
    pool.free([1])
    pool.free([0])
    pool.free([2])
    pool.share([1])
    pool.free([1])
    assert pool.num_cached == 3
    assert pool.allocate(1) == [0]
    assert [bool(index.match([b, b, 9])) for b in range(3)] == [False, True, True]
    assert pool.allocate(1) == [2]
    assert pool.allocate(1) == [1]
    assert len(index) == 0


def test_free_blocks_are_used_before_cached_ones() -> None:
    pool, index = indexed_pool(3)
    (block,) = pool.allocate(1)
    index.insert(index.root(), [7, 7], block)
    pool.free([block])
    assert pool.allocate(2) == [1, 2]
    assert index.match([7, 7, 7]) == [0]


def test_fits_counts_shared_cached_blocks() -> None:
    pool, index = indexed_pool(3)
    (block,) = pool.allocate(1)
    index.insert(index.root(), [7, 7], block)
    pool.free([block])
    assert pool.fits(3)
    assert not pool.fits(3, sharing=[block])
    assert pool.fits(2, sharing=[block])


def test_dirty_blocks_are_zeroed_before_reuse() -> None:
    zeroed: list[list[int]] = []
    pool = BlockPool(4, 4, zeroed.append)
    pool.free(pool.allocate(2), dirty=True)
    assert zeroed == []
    assert pool.allocate(3) == [0, 1, 2]
    assert zeroed == [[0, 1]]
    pool.free([0, 1, 2])
    pool.allocate(4)
    assert zeroed == [[0, 1]], "once is enough"


def test_dirty_blocks_leave_the_index() -> None:
    pool, index = indexed_pool()
    blocks = pool.allocate(2)
    child = index.insert(index.root(), [1, 2], blocks[0])
    assert child is not None
    index.insert(child, [3, 4], blocks[1])
    pool.share(blocks)
    pool.free([blocks[0]], dirty=True)
    assert index.match([1, 2, 3, 4, 5]) == []
    assert index.insert(index.root(), [1, 2], blocks[0]) is None, "still held by another table, but in doubt"
    with pytest.raises(CacheError, match="cannot be indexed"):
        pool.index(blocks[0])


def test_a_copy_of_a_dirty_block_is_dirty() -> None:
    zeroed: list[list[int]] = []
    pool = BlockPool(2, 4, zeroed.append)
    (block,) = pool.allocate(1)
    pool.share([block, block])
    pool.free([block], dirty=True)
    (target,) = pool.allocate(1)
    pool.replacement(block, target)
    pool.free([target])
    pool.allocate(1)
    assert zeroed == [[target]]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(CacheError, match="num_blocks=0"):
        BlockPool(0, 4)
    pool = BlockPool(1, 4)
    with pytest.raises(CacheError, match="zero_blocks"):
        pool.free(pool.allocate(1), dirty=True)
    PrefixIndex(pool)
    with pytest.raises(CacheError, match="prefix index already"):
        PrefixIndex(pool)
