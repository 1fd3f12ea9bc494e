"""A state machine over pool, tables, prefix index and storage, and mutants of the cache that it must catch.

The KV of a position is a number that stands for its salt and all tokens up to it, so that a block which serves a
wrong prefix, a wrong salt or another sequence's write is seen even when the token ids agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from outrider.cache import BlockPool, BlockTable, KVStorage, PrefixIndex, prefix
from outrider.errors import CacheError

NUM_BLOCKS, BLOCK_SIZE, MAX_TOKENS = 12, 2, 14
POISON = -1
TOKEN = st.integers(0, 1)
SALTS = ["", "tenant"]
PICK = st.integers(0, 5)


def value(salt: str, tokens: list[int]) -> int:
    """Stands for the KV of the last of ``tokens``; positive."""
    packed = f"{salt}:{tokens}".encode()
    return 1 + int.from_bytes(blake2b(packed, digest_size=6).digest())


@dataclass(eq=False)
class Sequence:
    """``tokens`` include the root, whose KV is not committed: ``len(tokens) == table.length + 1``."""

    salt: str
    tokens: list[int]
    table: BlockTable


class CacheMachine(RuleBasedStateMachine):
    """Plays an engine whose target writes ``value``; sequences enter, step, roll back, fork, fail and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = KVStorage(1, NUM_BLOCKS * BLOCK_SIZE, 1, 1, torch.int64, block_size=BLOCK_SIZE)
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, self.storage.zero_blocks)
        self.index = PrefixIndex(self.pool)
        self.sequences: list[Sequence] = []

    def read(self, slots: list[int]) -> list[int]:
        keys, values = (part.flatten().tolist() for part in self.storage.read(0, slots))
        assert keys == values
        return keys

    def write(self, slots: list[int], values: list[int]) -> None:
        held = torch.tensor(values)[:, None, None]
        self.storage.write(0, slots, held, held)

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Reserve and copy; False when blocks are short, which must change nothing."""
        table = sequence.table
        needed, free, blocks = table.num_needed(num_tokens), self.pool.num_free, list(table.blocks)
        try:
            pairs = table.reserve(num_tokens)
        except CacheError:
            assert needed > free
            assert (self.pool.num_free, table.blocks) == (free, blocks)
            return False
        assert free - self.pool.num_free == needed
        self.storage.copy_blocks(pairs)
        writable = table.blocks[table.length // BLOCK_SIZE :] if num_tokens > table.length else []
        for block in writable:
            assert self.pool.references(block) == 1
            assert not self.pool.indexed(block)
        return True

    def remove(self, sequence: Sequence, dirty: bool = False) -> None:
        sequence.table.release(dirty)
        self.sequences.remove(sequence)

    @precondition(lambda self: len(self.sequences) < 3)
    @rule(salt=st.sampled_from(SALTS), tokens=st.lists(TOKEN, min_size=1, max_size=MAX_TOKENS), chunk=st.integers(1, 5))
    def enter(self, salt: str, tokens: list[int], chunk: int) -> None:
        """A prompt is admitted, takes what the index has, and is prefilled in chunks (all but its last token)."""
        sequence = Sequence(salt, tokens, BlockTable(self.pool, self.index))
        self.sequences.append(sequence)
        matched = self.index.match(tokens, salt)
        rest = self.pool.blocks_for(len(tokens) - 1) - len(matched)
        fits = self.pool.fits(rest, sharing=matched)
        reused = sequence.table.reuse(tokens, salt)
        assert reused < len(tokens)
        assert fits == (rest <= self.pool.num_free)
        while sequence.table.length < len(tokens) - 1:
            start = sequence.table.length
            end = min(start + chunk, len(tokens) - 1)
            if not self.reserve(sequence, end):
                assert not fits
                self.remove(sequence)
                return
            slots = sequence.table.slots(start, end - start)
            self.write(slots, [value(salt, tokens[: position + 1]) for position in range(start, end)])
            sequence.table.commit(end)
            sequence.table.publish(sequence.tokens, sequence.salt)

    @precondition(lambda self: self.sequences)
    @rule(pick=PICK, draft=st.lists(st.tuples(TOKEN, st.integers(0, 4)), max_size=4), leaf=PICK, bonus=TOKEN)
    def step(self, pick: int, draft: list[tuple[int, int]], leaf: int, bonus: int) -> None:
        """Root and draft tree are written, one root-to-node path is accepted, moved into place and committed."""
        sequence = self.sequences[pick % len(self.sequences)]
        table, length = sequence.table, sequence.table.length
        paths: list[list[int]] = [[]]
        for node, (_, parent) in enumerate(draft):
            paths.append([*paths[parent % (node + 1)], node])
        if len(sequence.tokens) + len(draft) > MAX_TOKENS or not self.reserve(sequence, length + 1 + len(draft)):
            self.remove(sequence)
            return
        slots = table.slots(length, 1 + len(draft))
        branches = [[*sequence.tokens, *(draft[node][0] for node in path)] for path in paths]
        self.write(slots, [value(sequence.salt, branch) for branch in branches])
        accepted = paths[leaf % len(paths)]
        self.storage.move([slots[1 + node] for node in accepted], slots[1 : 1 + len(accepted)])
        table.commit(length + 1 + len(accepted))
        sequence.tokens = [*branches[leaf % len(paths)], bonus]
        sequence.table.publish(sequence.tokens, sequence.salt)

    @precondition(lambda self: self.sequences)
    @rule(pick=PICK, back=st.integers(1, 6), root=TOKEN)
    def roll_back(self, pick: int, back: int, root: int) -> None:
        """Committed positions are undone (a drafter's truncate)."""
        sequence = self.sequences[pick % len(self.sequences)]
        length = max(0, sequence.table.length - back)
        sequence.table.commit(length)
        sequence.tokens = [*sequence.tokens[:length], root]

    @precondition(lambda self: self.sequences)
    @rule(pick=PICK, root=TOKEN)
    def fork(self, pick: int, root: int) -> None:
        """A second sample of the same prompt goes on with its own root."""
        sequence = self.sequences[pick % len(self.sequences)]
        tokens = [*sequence.tokens[:-1], root]
        self.sequences.append(Sequence(sequence.salt, tokens, sequence.table.fork()))

    @precondition(lambda self: self.sequences)
    @rule(pick=PICK)
    def trim(self, pick: int) -> None:
        """Blocks that were reserved for drafts are let go."""
        self.sequences[pick % len(self.sequences)].table.trim()

    @precondition(lambda self: self.sequences)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        """A sequence ends, is aborted or preempted."""
        self.remove(self.sequences[pick % len(self.sequences)])

    @precondition(lambda self: self.sequences)
    @rule(pick=PICK, rows=st.integers(1, 4))
    def fail(self, pick: int, rows: int) -> None:
        """A step wrote garbage; the sequence leaves dirty."""
        sequence = self.sequences[pick % len(self.sequences)]
        length = sequence.table.length
        if self.reserve(sequence, length + rows):
            self.write(sequence.table.slots(length, rows), [POISON] * rows)
        self.remove(sequence, dirty=True)

    @invariant()
    def every_block_has_one_state(self) -> None:
        """References count the tables that hold a block; free, cached and held blocks are all there are."""
        holders = Counter(block for sequence in self.sequences for block in sequence.table.blocks)
        assert [self.pool.references(block) for block in range(NUM_BLOCKS)] == [holders[b] for b in range(NUM_BLOCKS)]
        assert self.pool.num_free + len(holders) == NUM_BLOCKS
        indexed = sum(self.pool.indexed(block) for block in range(NUM_BLOCKS))
        assert indexed == len(self.index)
        assert self.pool.num_cached <= indexed

    @invariant()
    def committed_kv_is_that_of_the_tokens(self) -> None:
        """Nobody's writes, moves or copies reach another sequence's committed positions."""
        for sequence in self.sequences:
            table = sequence.table
            assert len(sequence.tokens) == table.length + 1
            expected = [value(sequence.salt, sequence.tokens[: i + 1]) for i in range(table.length)]
            assert self.read(table.slots(0, table.length)) == expected

    @invariant()
    def slots_agree_with_blocks(self) -> None:
        """List, tensor and run of slots say the same as the blocks."""
        for sequence in self.sequences:
            table = sequence.table
            slots = [block * BLOCK_SIZE + offset for block in table.blocks for offset in range(BLOCK_SIZE)]
            assert table.slots(0, table.capacity) == slots == table.slots_tensor().tolist()
            run = list(range(slots[0], slots[0] + len(slots))) if slots else []
            assert table.contiguous == (slots == run)

    @invariant()
    def held_blocks_hold_no_garbage(self) -> None:
        """Blocks of a failed sequence are zero when they are used again."""
        held = [slot for sequence in self.sequences for slot in sequence.table.slots(0, sequence.table.capacity)]
        assert POISON not in self.read(held)

    @invariant()
    def prefix_hits_hold_the_right_kv(self) -> None:
        """Every prefix that can be matched at all leads to KV of that very salt and prefix."""
        for salt in SALTS:
            found: list[list[int]] = [[]]
            while found:
                known = found.pop()
                for tokens in ([*known, *block] for block in product(range(2), repeat=BLOCK_SIZE)):
                    assert len(self.index.match(tokens, salt)) * BLOCK_SIZE < len(tokens)
                    blocks = self.index.match([*tokens, 0], salt)
                    if len(blocks) * BLOCK_SIZE == len(tokens):
                        slots = [block * BLOCK_SIZE + offset for block in blocks for offset in range(BLOCK_SIZE)]
                        assert self.read(slots) == [value(salt, tokens[: i + 1]) for i in range(len(tokens))]
                        found.append(tokens)

    def teardown(self) -> None:
        """Nothing leaks: all blocks can be allocated once every sequence has left."""
        for sequence in list(self.sequences):
            self.remove(sequence)
        assert self.pool.num_free == NUM_BLOCKS
        assert sorted(self.pool.allocate(NUM_BLOCKS)) == list(range(NUM_BLOCKS))
        assert len(self.index) == 0
        assert POISON not in self.read(list(range(NUM_BLOCKS * BLOCK_SIZE)))


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
TestCache = CacheMachine.TestCase


def no_copy_on_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockTable, "_boundary_is_shared", lambda table: False)


def copies_are_not_carried_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVStorage, "copy_blocks", lambda storage, pairs: None)


def moves_are_not_carried_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVStorage, "move", lambda storage, source, target: None)


def salts_mix(patch: pytest.MonkeyPatch) -> None:
    match, root = PrefixIndex.match, PrefixIndex.root
    patch.setattr(PrefixIndex, "match", lambda index, tokens, salt="": match(index, tokens))
    patch.setattr(PrefixIndex, "root", lambda index, salt="": root(index))


def parents_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prefix, "digest", lambda parent, content: content)
    patch.setattr(PrefixIndex, "_lookup", lambda index, parent, packed: index._entries.get(packed))


def shared_blocks_can_be_evicted(patch: pytest.MonkeyPatch) -> None:
    def share(pool: BlockPool, blocks: list[int]) -> None:
        for block in blocks:
            pool._references[block] += 1

    patch.setattr(BlockPool, "share", share)


def first_holder_frees(patch: pytest.MonkeyPatch) -> None:
    free = BlockPool.free

    def free_at_once(pool: BlockPool, blocks: list[int], dirty: bool = False) -> None:
        for block in blocks:
            pool._references[block] = min(1, pool._references[block])
            if pool._references[block]:
                free(pool, [block], dirty)

    patch.setattr(BlockPool, "free", free_at_once)


def trim_leaks(patch: pytest.MonkeyPatch) -> None:
    def trim(table: BlockTable) -> None:
        del table.blocks[table._pool.blocks_for(table.length) :]
        table._refresh()

    patch.setattr(BlockTable, "trim", trim)


def rollback_keeps_shared_blocks(patch: pytest.MonkeyPatch) -> None:
    def commit(table: BlockTable, length: int) -> None:
        table.length = length
        del table._chain[length // BLOCK_SIZE :]

    patch.setattr(BlockTable, "commit", commit)


def rollback_keeps_the_chain(patch: pytest.MonkeyPatch) -> None:
    def commit(table: BlockTable, length: int) -> None:
        shrinks, table.length = length < table.length, length
        if shrinks:
            table.trim()

    patch.setattr(BlockTable, "commit", commit)


def drafts_are_published(patch: pytest.MonkeyPatch) -> None:
    publish = BlockTable.publish

    def publish_all(table: BlockTable, tokens: list[int], salt: str = "") -> None:
        length = table.length
        table.length = table.capacity
        publish(table, (tokens + [0] * MAX_TOKENS)[: table.capacity], salt)
        table.length = length

    patch.setattr(BlockTable, "publish", publish_all)


def held_blocks_stay_indexed(patch: pytest.MonkeyPatch) -> None:
    evict = BlockPool.evict
    patch.setattr(BlockPool, "evict", lambda pool, block: pool.references(block) == 0 and evict(pool, block))


def evicted_entries_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixIndex, "_drop", lambda index, block: index._pool.unindex(block))


def dirty_blocks_are_not_zeroed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVStorage, "zero_blocks", lambda storage, blocks: None)


def replaced_blocks_keep_their_slots(patch: pytest.MonkeyPatch) -> None:
    def replace(table: BlockTable, position: int, block: int) -> None:
        table.blocks[position] = block

    patch.setattr(BlockTable, "_replace", replace)


MUTANTS = [
    no_copy_on_write,
    copies_are_not_carried_out,
    moves_are_not_carried_out,
    salts_mix,
    parents_are_ignored,
    shared_blocks_can_be_evicted,
    first_holder_frees,
    trim_leaks,
    rollback_keeps_shared_blocks,
    rollback_keeps_the_chain,
    drafts_are_published,
    held_blocks_stay_indexed,
    evicted_entries_stay,
    dirty_blocks_are_not_zeroed,
    replaced_blocks_keep_their_slots,
]
SEARCH = settings(
    max_examples=1500,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_are_caught(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that no mutant can fail proves nothing."""
    mutant(monkeypatch)
    with pytest.raises((AssertionError, CacheError, IndexError, KeyError)):
        run_state_machine_as_test(CacheMachine, settings=SEARCH)
