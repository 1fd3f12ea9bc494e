"""Which sequences run in a step, and how many of their rows: continuous batching with chunked prefill."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from outrider.cache.pool import BlockPool
from outrider.cache.prefix import PrefixIndex
from outrider.cache.storage import KVStorage
from outrider.cache.table import BlockTable
from outrider.engine.pacing import Pacing
from outrider.engine.sequence import Sequence
from outrider.engine.waiting import WaitingQueue
from outrider.errors import CacheError, RequestError


@dataclass(slots=True)
class Slice:
    """Rows of one sequence in this step, from its first uncomputed token on."""

    seq: Sequence
    num_rows: int

    @property
    def samples(self) -> bool:
        """The last row is the root: its logits give the next token."""
        return self.num_rows == self.seq.num_uncomputed


class Scheduler:
    """Admission by free blocks, chunked prefill within a row budget, preemption of who matters least: of the lowest
    priority, the latest. ``pacing``: how much time a step has; None: no limit."""

    def __init__(
        self,
        pool: BlockPool,
        index: PrefixIndex | None,
        storage: KVStorage,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        on_preempt: Callable[[Sequence], None],
        pacing: Pacing | None = None,
        may_borrow: Callable[[Sequence], bool] = lambda seq: True,
    ) -> None:
        self.pool, self.index, self.storage = pool, index, storage
        self.pacing, self._may_borrow = pacing, may_borrow
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.max_num_seqs, self._max_rows, self._on_preempt = max_num_seqs, max_num_batched_tokens, on_preempt

    def add(self, seq: Sequence, arrival: float | None = None) -> None:
        """Queue a sequence, which came at ``arrival``, or now."""
        seq.arrival = time.perf_counter() if arrival is None else arrival
        self.waiting.add(seq)

    def schedule(self) -> list[Slice]:
        """The slices of the next step: decoding sequences first, then prefill chunks, then newcomers."""
        rows = self._max_rows
        decoding = sum(seq.num_uncomputed == 1 for seq in self.running)
        if decoding and self.pacing is not None:
            places = min(len(self.running) + len(self.waiting), self.max_num_seqs)
            rows = min(rows, decoding + self.pacing.chunk_rows(decoding, places - decoding))
        out: list[Slice] = []
        if self.pool.num_free < len(self.running):
            for seq in self.running:  # slots that the last step's drafts left behind come before a preemption
                if seq.table is not None:
                    seq.table.trim()
        for seq in sorted(self.running, key=lambda s: s.num_uncomputed > 1):
            if seq not in self.running:  # preempted for the sake of an earlier one
                continue
            count = min(seq.num_uncomputed, max(rows, 0))
            if count == 0 or not self.reserve(seq, seq.num_computed + count):
                continue
            out.append(Slice(seq, count))
            rows -= count
        out = [part for part in out if part.seq in self.running]
        while rows > 0 and len(self.running) < self.max_num_seqs:
            first = self.waiting.first(self.running)
            if first is None or not self._admit(first, bool(self.running)):
                break
            self.waiting.remove(first)
            self.running.append(first)
            count = min(first.num_uncomputed, rows)
            if self.reserve(first, first.num_computed + count):
                out.append(Slice(first, count))
                rows -= count
        return out

    def _admit(self, seq: Sequence, others: bool) -> bool:
        if seq.index > 0 and any(s.request_id == seq.request_id and not s.output_ids for s in self.running):
            return False  # the first sample's prompt is being computed: wait for its blocks
        if self.pacing is not None and not self.pacing.admits(len(self.running)):
            return False
        table = BlockTable(self.pool, self.index)
        known = len(seq.hidden_layers) <= self.storage.num_tapped
        cached = table.reuse(seq.token_ids, seq.prefix_salt) if known else 0
        needed = table.num_needed(len(seq.token_ids) + 1)
        free = self.pool.num_free if self._may_borrow(seq) else self.pool.num_own_free
        if others and needed + 1 > free:
            table.release()
            return False
        seq.table, seq.cached_as = table, seq.prefix_salt
        if cached and seq.hidden_layers:
            seq.hidden.append(self.storage.read_taps(table.slots(0, cached), len(seq.hidden_layers)))
        if not seq.output_ids and not seq.stats.num_preemptions:
            seq.stats.num_cached_tokens = cached
            seq.stats.queue_seconds = time.perf_counter() - seq.arrival
        return True

    def reserve(self, seq: Sequence, num_tokens: int, *, preempt: bool = True) -> bool:
        """Make room for ``num_tokens`` positions, preempting others if allowed; False when there is none.

        A sequence that is the last one running and still does not fit gets an error: the cache is too small for it.
        """
        table = seq.table
        assert table is not None
        while True:
            try:
                self.storage.copy_blocks(table.reserve(num_tokens))
                return True
            except CacheError as error:
                if not preempt:
                    return False
                victim = max(reversed(self.running), key=lambda each: each.params.priority)
                if victim is seq and len(self.running) == 1:
                    seq.failure = RequestError(f"kv_cache_tokens is too small for this request: raise it ({error})")
                    return False
                self.preempt(victim)
                if victim is seq:
                    return False

    def room(self, seq: Sequence, wanted: int) -> int:
        """Positions behind the root that a draft may take, at most ``wanted``; they are reserved. Preempts nobody."""
        assert seq.table is not None
        length = len(seq.token_ids)
        if wanted <= 0 or self.reserve(seq, length + wanted, preempt=False):
            return wanted
        return min(wanted, seq.table.capacity - length)

    def preempt(self, seq: Sequence) -> None:
        """Give up a sequence's blocks; it is recomputed later, with identical output."""
        self.running.remove(seq)
        self._on_preempt(seq)
        self.drop(seq)
        seq.stats.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.put_back(seq)

    def finish(self, seq: Sequence) -> None:
        """A sequence has left the engine; its blocks go back, those of a failed one to be zeroed first."""
        if seq in self.running:
            self.running.remove(seq)
        else:
            with suppress(ValueError):  # it has left already
                self.waiting.remove(seq)
        self.drop(seq, dirty=seq.failure is not None)

    @staticmethod
    def drop(seq: Sequence, dirty: bool = False) -> None:
        """Let go of the sequence's blocks."""
        if seq.table is not None:
            seq.table.release(dirty)
            seq.table = None
