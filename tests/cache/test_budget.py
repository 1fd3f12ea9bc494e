"""Two pools in one budget: bytes stay within it, own blocks are always to be had, live blocks keep their content."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cache import BlockPool, BlockTable, KVStorage, PrefixIndex
from outrider.cache.budget import CacheBudget
from outrider.cache.pages import can_give_back, zeros
from outrider.errors import CacheError

SIZE, CPU = 16, torch.device("cpu")
OWN = (6, 6)  # blocks of target and draft
BLOCKS = (12, 6)
SHAPES = ((2, 4, 32), (1, 2, 32))  # layers, heads, head dim: a block of the target takes four times the bytes


def value(tokens: Sequence[int]) -> int:
    """Stands for the KV of the last of ``tokens``."""
    return int.from_bytes(blake2b(str(list(tokens)).encode(), digest_size=2).digest()) + 1


@dataclass(eq=False)
class Text:
    """A sequence of one of the models with all its tokens computed."""

    side: int
    tokens: list[int]
    table: BlockTable


class Caches:
    """A target's and a draft's cache in one budget."""

    def __init__(self) -> None:
        self.storages = [
            KVStorage(layers, blocks * SIZE, heads, dim, torch.float32, block_size=SIZE)
            for blocks, (layers, heads, dim) in zip(BLOCKS, SHAPES, strict=True)
        ]
        self.pools = [storage.new_pool(own * SIZE) for storage, own in zip(self.storages, OWN, strict=True)]
        self.indexes = [PrefixIndex(pool) for pool in self.pools]
        self.budget = CacheBudget(self.pools)
        self.texts: list[Text] = []

    def enter(self, side: int, tokens: list[int]) -> bool:
        """Compute a text, but for what the index has of it; False when blocks are short."""
        table = BlockTable(self.pools[side], self.indexes[side])
        start = table.reuse(tokens)
        fits = table.num_needed(len(tokens)) <= self.pools[side].num_free
        try:
            self.storages[side].copy_blocks(table.reserve(len(tokens)))
        except CacheError:
            assert not fits
            table.release()
            return False
        assert fits
        slots = table.slots(start, len(tokens) - start)
        rows = torch.tensor([float(value(tokens[: at + 1])) for at in range(start, len(tokens))])[:, None, None]
        self.storages[side].write(slice(None), slots, rows, rows)
        table.commit(len(tokens))
        table.publish(tokens)
        self.texts.append(Text(side, tokens, table))
        return True

    def leave(self, text: Text) -> None:
        text.table.release()
        self.texts.remove(text)

    def check(self) -> None:
        for text in self.texts:
            wanted = torch.tensor([float(value(text.tokens[: at + 1])) for at in range(len(text.tokens))])
            slots = text.table.slots(0, len(text.tokens))
            for part in self.storages[text.side].read(slice(None), slots):
                assert torch.equal(part, wanted[None, :, None, None].expand_as(part))
        kept = sum((pool.num_held + pool.num_cached) * pool.block_bytes for pool in self.pools)
        touched = sum(pool.num_touched * pool.block_bytes for pool in self.pools)
        assert self.budget.num_held <= kept <= touched <= self.budget.num_bytes
        target, draft = self.pools
        assert draft.num_held <= OWN[1]
        assert target.num_free >= OWN[0] - target.num_held


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=5 * SIZE)
OPS = st.one_of(st.tuples(st.integers(0, 1), TOKENS), st.integers(0, 9))


@settings(max_examples=150, deadline=None)
@given(st.lists(OPS, min_size=1, max_size=40))
def test_texts_keep_their_content_within_the_budget(ops: list[tuple[int, list[int]] | int]) -> None:
    caches = Caches()
    for op in ops:
        if isinstance(op, tuple):
            caches.enter(*op)
        elif caches.texts:
            caches.leave(caches.texts[op % len(caches.texts)])
        caches.check()
    for text in list(caches.texts):
        caches.leave(text)
    assert caches.budget.num_held == 0
    assert caches.pools[0].num_free >= OWN[0]


def test_the_target_borrows_what_the_draft_leaves_and_no_more() -> None:
    caches = Caches()
    assert caches.pools[0].num_free == 7  # six of its own, and the draft's six take the bytes of one and a half
    assert caches.enter(1, [1] * SIZE * 3)
    assert caches.pools[0].num_free == 6
    assert caches.pools[0].num_own_free == 6
    assert caches.enter(0, [0] * SIZE * 6)
    assert (caches.pools[0].num_free, caches.pools[0].num_own_free) == (0, 0)
    assert caches.enter(1, [0] * SIZE * 3)


def test_a_draft_goes_without_while_its_share_is_lent_out() -> None:
    caches = Caches()
    assert caches.enter(0, [0] * SIZE * 7)
    assert caches.pools[1].num_free == 2
    assert not caches.enter(1, [1] * SIZE * 3)
    caches.leave(caches.texts[0])
    assert caches.enter(1, [1] * SIZE * 3)


def test_prefixes_are_forgotten_oldest_first_whichever_cache_they_are_in() -> None:
    caches = Caches()
    for side, token in ((1, 1), (0, 1)):
        caches.enter(side, [token] * SIZE * 6)
        caches.leave(caches.texts[0])
    assert caches.enter(0, [0] * SIZE)  # borrowed from the draft's prefix, which is older than the target's
    assert caches.indexes[0].match([1] * SIZE * 6) != []
    assert len(caches.indexes[1].match([1] * SIZE * 6)) < 6


@pytest.mark.skipif(not can_give_back(CPU), reason="pages cannot be given back here")
def test_pages_that_were_given_back_are_zeros_and_their_neighbours_are_kept() -> None:
    pages = zeros((4 * mmap.PAGESIZE,), torch.uint8, CPU)
    pages.tensor.fill_(7)
    pages.give_back(mmap.PAGESIZE // 2, 3 * mmap.PAGESIZE + 5)
    kept = pages.tensor.view(4, mmap.PAGESIZE).float().mean(dim=1).tolist()
    assert kept == [7, 0, 0, 7]


@pytest.mark.skipif(not can_give_back(CPU), reason="pages cannot be given back here")
def test_what_was_lent_comes_out_of_the_memory_of_who_lent_it() -> None:
    storage = KVStorage(4, 64 * SIZE, 4, 64, torch.float32, block_size=SIZE)
    pool = storage.new_pool()
    blocks = pool.allocate(64)
    storage.write(slice(None), list(range(64 * SIZE)), 1.0, 1.0)
    full = resident(storage)
    pool.free(blocks[16:])
    pool.give_back()
    assert resident(storage) <= full // 3
    keys, _ = storage.read(slice(None), list(range(16 * SIZE)))
    assert bool((keys == 1.0).all())


def resident(storage: KVStorage) -> int:
    """Bytes of the mappings of ``storage`` that lie in memory, as the system tells."""
    starts = {part.data_ptr() for part in (storage.keys, storage.values)}
    total, ours = 0, False
    with open("/proc/self/smaps", encoding="ascii") as lines:
        for line in lines:
            head = line.split()[0]
            if "-" in head and not head.endswith(":"):
                low, high = (int(part, 16) for part in head.split("-"))
                ours = any(low <= start < high for start in starts)
            elif ours and head == "Rss:":
                total += int(line.split()[1]) << 10
    return total


def test_a_pool_without_a_budget_is_all_its_own() -> None:
    pool = BlockPool(4, SIZE)
    assert (pool.own_blocks, pool.num_own_free, pool.num_free) == (4, 4, 4)
    pool.allocate(3)
    assert (pool.num_own_free, pool.num_held) == (1, 3)
