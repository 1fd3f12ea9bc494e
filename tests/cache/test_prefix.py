"""The prefix index: longest match, salts, collisions of digests, eviction of chains, counts."""

from __future__ import annotations

import pytest

from outrider.cache import BlockPool, PrefixIndex, prefix
from outrider.errors import CacheError


def publish(index: PrefixIndex, pool: BlockPool, tokens: list[int], salt: str = "") -> list[int]:
    """Index the full blocks of ``tokens`` in fresh blocks and let go of them, the last one first."""
    blocks = pool.allocate(len(tokens) // pool.block_size)
    entry = index.root(salt)
    for i, block in enumerate(blocks):
        following = index.insert(entry, tokens[2 * i : 2 * i + 2], block)
        if following is None:
            break
        entry = following
    pool.free(blocks[::-1])
    return blocks


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(8, 2)


@pytest.fixture
def index(pool: BlockPool) -> PrefixIndex:
    return PrefixIndex(pool)


def test_longest_prefix_in_whole_blocks(index: PrefixIndex, pool: BlockPool) -> None:
    blocks = publish(index, pool, [1, 2, 3, 4, 5, 6])
    assert index.match([1, 2, 3, 4, 5, 6, 7]) == blocks
    assert index.match([1, 2, 3, 4, 9, 6, 7]) == blocks[:2]
    assert index.match([9, 2, 3, 4, 5, 6, 7]) == []
    assert index.match([3, 4, 5]) == [], "a block counts only after its own prefix"
    assert index.match([]) == []


def test_full_hit_leaves_the_last_token(index: PrefixIndex, pool: BlockPool) -> None:
    blocks = publish(index, pool, [1, 2, 3, 4])
    assert index.match([1, 2, 3, 4]) == blocks[:1]
    assert index.match([1, 2, 3]) == blocks[:1]
    assert index.match([1, 2]) == []


def test_salts_do_not_mix(index: PrefixIndex, pool: BlockPool) -> None:
    first = publish(index, pool, [1, 2, 3, 4], "a")
    assert index.match([1, 2, 3, 4, 5], "b") == []
    assert index.match([1, 2, 3, 4, 5]) == []
    second = publish(index, pool, [1, 2, 3, 4], "b")
    assert index.match([1, 2, 3, 4, 5], "a") == first
    assert index.match([1, 2, 3, 4, 5], "b") == second


def test_first_publisher_wins(index: PrefixIndex, pool: BlockPool) -> None:
    first = publish(index, pool, [1, 2])
    again = pool.allocate(2)
    entry = index.insert(index.root(), [1, 2], again[0])
    assert entry is not None
    assert entry.block == first[0]
    index.insert(entry, [3, 4], again[1])
    assert index.match([1, 2, 3, 4, 5]) == [first[0], again[1]]


def test_collisions_never_return_other_tokens(pool: BlockPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "digest", lambda parent, content: b"same")
    index = PrefixIndex(pool)
    blocks = publish(index, pool, [1, 2, 3, 4])
    assert index.match([1, 2, 3, 4, 5]) == blocks[:1], "the second block collides with the first and stays out"
    assert index.match([3, 4, 5]) == []
    assert index.match([1, 2, 9], "other salt") == []
    assert index.insert(index.root("other salt"), [1, 2], pool.allocate(1)[0]) is None


def test_eviction_forgets_descendants(index: PrefixIndex, pool: BlockPool) -> None:
    blocks = publish(index, pool, [1, 2, 3, 4, 5, 6])
    other = publish(index, pool, [8, 9])
    pool.evict(blocks[1])
    assert index.match([1, 2, 3, 4, 5, 6, 7]) == blocks[:1]
    assert pool.num_cached == 2
    again = publish(index, pool, [1, 2, 3, 4])
    assert index.match([1, 2, 3, 4, 5, 6, 7]) == [blocks[0], again[1]]
    assert index.match([8, 9, 0]) == other


def test_roots_of_forgotten_salts_are_dropped(index: PrefixIndex, pool: BlockPool) -> None:
    root = index.root("a")
    (block,) = publish(index, pool, [1, 2], "a")
    pool.evict(block)
    assert index.root("a") is not root
    with pytest.raises(CacheError, match="start at root"):
        index.insert(root, [1, 2], pool.allocate(1)[0])


def test_only_full_held_blocks_are_indexed(index: PrefixIndex, pool: BlockPool) -> None:
    with pytest.raises(CacheError, match="1 tokens given for a full block of 2"):
        index.insert(index.root(), [1], pool.allocate(1)[0])
    assert index.insert(index.root(), [1, 2], 7) is None, "block 7 is free"


def test_counts(index: PrefixIndex) -> None:
    index.record(10, 8)
    index.record(5, 0)
    assert (index.num_query_tokens, index.num_hit_tokens) == (15, 8)


def test_keys_do_not_depend_on_the_process() -> None:
    assert prefix.digest(b"", b"salt").hex() == "d7bee2b584bba027c1937f8a98c33e5e"
