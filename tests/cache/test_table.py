"""Block tables: slots, reservation, rollback, forks and copy on write, publication."""

from __future__ import annotations

import pytest

from outrider.cache import BlockPool, BlockTable, PrefixIndex
from outrider.errors import CacheError

TOKENS = list(range(100, 200))


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(10, 4, lambda blocks: None)


@pytest.fixture
def index(pool: BlockPool) -> PrefixIndex:
    return PrefixIndex(pool)


def filled(pool: BlockPool, length: int, index: PrefixIndex | None = None) -> BlockTable:
    table = BlockTable(pool, index)
    assert table.reserve(length) == []
    table.commit(length)
    return table


def test_slots_follow_positions(pool: BlockPool) -> None:
    table = filled(pool, 5)
    assert table.blocks == [0, 1]
    assert table.slots(0, 5) == [0, 1, 2, 3, 4]
    assert (table.contiguous, pool.allocate(1)) == (True, [2])
    table.reserve(9)
    assert (table.contiguous, table.blocks) == (False, [0, 1, 3])
    assert table.slots(6, 4) == [6, 7, 12, 13]
    assert table.slots_tensor().tolist() == [*range(8), *range(12, 16)]
    assert table.slots_tensor() is table.slots_tensor()
    with pytest.raises(CacheError, match="not reserved"):
        table.slots(10, 3)


def test_sequences_grow_beside_each_other(pool: BlockPool) -> None:
    tables = [filled(pool, 4), filled(pool, 4)]
    for table in tables:
        table.reserve(8)
        assert table.contiguous


def test_reserve_keeps_and_trim_frees_what_lies_beyond(pool: BlockPool) -> None:
    table = filled(pool, 3)
    table.reserve(12)
    table.commit(4)
    assert table.capacity == 12
    assert table.reserve(12) == []
    assert table.reserve(3) == [], "committed positions need nothing"
    table.trim()
    assert table.blocks == [0]
    assert pool.num_free == 9
    table.trim()
    with pytest.raises(CacheError, match="length 5 cannot be committed with a capacity of 4"):
        table.commit(5)


def test_a_failed_reserve_changes_nothing(pool: BlockPool) -> None:
    table = filled(pool, 6)
    fork = table.fork()
    assert fork.num_needed(40) == 9
    with pytest.raises(CacheError, match="9 blocks"):
        fork.reserve(40)
    assert fork.blocks == table.blocks == [0, 1]
    assert fork.num_needed(36) == 8
    assert fork.reserve(36) == [(1, 2)]
    assert pool.num_free == 0


def test_fork_copies_only_the_partial_block(pool: BlockPool) -> None:
    table = filled(pool, 6)
    table.reserve(12)
    fork = table.fork()
    assert (fork.blocks, fork.length) == ([0, 1], 6)
    assert [pool.references(block) for block in table.blocks] == [2, 2, 1]
    assert table.reserve(7) == [(1, 3)]
    assert table.slots(4, 8) == [12, 13, 14, 15, 8, 9, 10, 11]
    assert fork.reserve(7) == [], "the last holder writes in place"
    assert (pool.references(0), pool.references(1), pool.references(3)) == (2, 1, 1)
    table.release()
    fork.release()
    assert pool.num_free == 10


def test_fork_at_a_block_boundary_copies_nothing(pool: BlockPool) -> None:
    table = filled(pool, 8)
    fork = table.fork()
    assert fork.reserve(9) == []
    assert table.reserve(9) == []
    assert table.blocks[2] != fork.blocks[2]


def test_only_committed_full_blocks_are_published(pool: BlockPool, index: PrefixIndex) -> None:
    table = filled(pool, 7, index)
    table.reserve(20)
    table.publish(TOKENS)
    assert len(index) == 1
    table.commit(12)
    table.publish(TOKENS)
    assert index.match(TOKENS) == [0, 1, 2]
    table.publish(TOKENS)
    table.commit(16)
    with pytest.raises(CacheError, match="3 tokens given"):
        table.publish(TOKENS[:3])


def test_reuse_shares_published_blocks(pool: BlockPool, index: PrefixIndex) -> None:
    table = filled(pool, 10, index)
    table.publish(TOKENS, "a")
    other = BlockTable(pool, index)
    assert other.reuse(TOKENS[:20], "b") == 0
    assert other.reuse(TOKENS[:20], "a") == 8
    assert (other.blocks, other.length) == ([0, 1], 8)
    assert (index.num_query_tokens, index.num_hit_tokens) == (40, 8)
    with pytest.raises(CacheError, match="empty block table"):
        other.reuse(TOKENS)
    assert other.reserve(12) == []
    other.commit(12)
    other.publish(TOKENS, "a")
    assert len(index.match(TOKENS, "a")) == 3
    assert BlockTable(pool).reuse(TOKENS, "a") == 0, "without an index nothing is reused"


def test_released_blocks_stay_until_needed(pool: BlockPool, index: PrefixIndex) -> None:
    table = filled(pool, 12, index)
    table.publish(TOKENS)
    table.release()
    assert (pool.num_free, pool.num_cached) == (10, 3)
    filled(pool, 32, index)
    assert index.match(TOKENS) == [0, 1], "the deepest block goes first"


def test_rollback_into_a_published_block_takes_it_out(pool: BlockPool, index: PrefixIndex) -> None:
    table = filled(pool, 12, index)
    table.publish(TOKENS)
    table.commit(6)
    assert table.blocks == [0, 1]
    assert index.match(TOKENS) == [0, 1, 2], "nothing was written yet"
    table.reserve(7)
    assert index.match(TOKENS) == [0]
    table.commit(8)
    table.publish([*TOKENS[:6], 0, 0])
    assert index.match([*TOKENS[:6], 0, 0, 0]) == [0, 1]


def test_rollback_into_a_shared_block_copies_it(pool: BlockPool, index: PrefixIndex) -> None:
    table = filled(pool, 8, index)
    table.publish(TOKENS)
    other = BlockTable(pool, index)
    other.reuse(TOKENS)
    other.commit(2)
    assert other.blocks == [0]
    assert other.reserve(3) == [(0, 2)]
    assert index.match(TOKENS) == [0, 1]


def test_rollback_of_a_fork_leaves_the_chain_of_the_other(pool: BlockPool, index: PrefixIndex) -> None:
    table = filled(pool, 8, index)
    table.publish(TOKENS)
    fork = table.fork()
    fork.commit(2)
    assert fork.reserve(12) == [(0, 2)]
    fork.commit(12)
    tokens = [100, 101, *range(12)]
    fork.publish(tokens)
    assert index.match(tokens) == fork.blocks
    assert index.match([*TOKENS[:8], *tokens[8:]]) == table.blocks


def test_publication_starts_again_after_an_eviction(pool: BlockPool, index: PrefixIndex) -> None:
    first, second = filled(pool, 4, index), filled(pool, 8, index)
    first.publish(TOKENS)
    second.publish(TOKENS)
    assert index.match(TOKENS) == [first.blocks[0], second.blocks[1]]
    first.release()
    filled(pool, 4 * pool.num_free)
    assert index.match(TOKENS) == []
    pool.free([pool.num_blocks - 1])
    second.reserve(12)
    second.commit(12)
    second.publish(TOKENS)
    assert index.match(TOKENS) == second.blocks


def test_dirty_release(pool: BlockPool, index: PrefixIndex) -> None:
    table = filled(pool, 12, index)
    table.publish(TOKENS)
    table.release(dirty=True)
    assert (pool.num_free, pool.num_cached, len(index)) == (10, 0, 0)
    assert (table.blocks, table.length, table.capacity) == ([], 0, 0)
    assert table.slots_tensor().numel() == 0


def test_blocks_in_doubt_are_not_published(pool: BlockPool, index: PrefixIndex) -> None:
    table = filled(pool, 8, index)
    table.fork().release(dirty=True)
    table.publish(TOKENS)
    assert len(index) == 0
    table.release()
    assert (pool.num_free, pool.num_cached) == (10, 0)
