"""Who is next: by priority, then those that had to make way, then fairly among tenants, then by arrival."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

from outrider.engine.sequence import Sequence

Key = TypeVar("Key")


class WaitingQueue:
    """Sequences that wait for their turn. Of equal priority (lower ones come first), preempted ones go before all
    others, and tenants with fewer running sequences before those with more: a flood of requests under one
    key does not hold up another's."""

    def __init__(self) -> None:
        self._preempted: dict[int, deque[Sequence]] = {}
        self._arrived: dict[int, dict[str, deque[Sequence]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        for waiting in self._preempted.values():
            yield from waiting
        for tenants in self._arrived.values():
            for waiting in tenants.values():
                yield from waiting

    def add(self, seq: Sequence) -> None:
        """Behind the others of its tenant."""
        self._arrived.setdefault(seq.params.priority, {}).setdefault(seq.tenant, deque()).append(seq)
        self._length += 1

    def put_back(self, seq: Sequence) -> None:
        """It was preempted: in front of all others of its priority."""
        self._preempted.setdefault(seq.params.priority, deque()).appendleft(seq)
        self._length += 1

    def first(self, running: Iterable[Sequence]) -> Sequence | None:
        """The next one, beside those that run."""
        if not self._length:
            return None
        priority = min((*self._preempted, *self._arrived))
        if priority in self._preempted:
            return self._preempted[priority][0]
        counts = Counter(seq.tenant for seq in running)
        heads = [waiting[0] for waiting in self._arrived[priority].values()]
        return min(heads, key=lambda seq: (counts[seq.tenant], seq.arrival))

    def remove(self, seq: Sequence) -> None:
        """It starts, or leaves. Raises ValueError when it does not wait."""
        priority = seq.params.priority
        if seq in self._preempted.get(priority, ()):
            _take(self._preempted, priority, seq)
        else:
            tenants = self._arrived.get(priority, {})
            _take(tenants, seq.tenant, seq)
            if not tenants:
                del self._arrived[priority]
        self._length -= 1


def _take(queues: dict[Key, deque[Sequence]], key: Key, seq: Sequence) -> None:
    if key not in queues:
        raise ValueError("the sequence does not wait")
    queues[key].remove(seq)
    if not queues[key]:
        del queues[key]
