"""Outputs of finished requests, kept for later ones: bounded, separated by tenant salt, safe to share by threads."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from outrider.drafters.context_index import ContextIndex


@dataclass(slots=True)
class _Shelf:
    """The documents of one salt: an index, and where each document lies in it (ascending by start)."""

    index: ContextIndex
    starts: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    forgotten: int = 0  # tokens of dropped documents that still take room

    def add(self, key: int, tokens: Sequence[int]) -> None:
        self.starts.append(self.index.start_document())
        self.lengths.append(len(tokens))
        self.keys.append(key)
        self.index.extend(tokens)

    def remove(self, key: int) -> None:
        place = self.keys.index(key)
        start, length = self.starts.pop(place), self.lengths.pop(place)
        del self.keys[place]
        self.index.forget(start, start + length)
        self.forgotten += length
        if self.forgotten > sum(self.lengths):
            self.starts = self.index.compact(list(zip(self.starts, self.lengths, strict=True)))
            self.forgotten = 0

    def owner(self, position: int) -> int:
        return self.keys[bisect_right(self.starts, position) - 1]


class OutputStore:
    """At most ``max_requests`` outputs over all salts; the least recently used one makes room.

    An output is used when it is added and when it is the latest one that a match is found in.
    """

    def __init__(self, depth: int, max_requests: int) -> None:
        self._depth, self._max_requests = depth, max_requests
        self._shelves: dict[str, _Shelf] = {}
        self._salts: OrderedDict[int, str] = OrderedDict()  # key -> salt, least recently used first
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._salts)

    def add(self, salt: str, key: int, tokens: Sequence[int]) -> None:
        """Keep ``tokens`` for requests with the same ``salt``; replaces what was kept under ``key``."""
        if not tokens or not self._max_requests:
            return
        with self._lock:
            if key in self._salts:
                self._drop(key)
            while len(self._salts) >= self._max_requests:
                self._drop(next(iter(self._salts)))
            self._salts[key] = salt
            if salt not in self._shelves:
                self._shelves[salt] = _Shelf(ContextIndex(self._depth))
            self._shelves[salt].add(key, tokens)

    def match(self, salt: str, context: array[int], limit: int, count: int) -> tuple[int, list[array[int]]]:
        """Length of the longest context seen under ``salt``, and what followed it: up to ``count`` tokens of about
        ``limit`` occurrences at most, latest first; -1 marks the end of an output."""
        with self._lock:
            shelf = self._shelves.get(salt)
            if shelf is None:
                return 0, []
            match = shelf.index.match(context, limit)
            if not match.length:
                return 0, []
            self._salts.move_to_end(shelf.owner(match.ends[0]))
            return match.length, [shelf.index.tokens(end + 1, end + 1 + count) for end in match.ends]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._shelves.clear()
            self._salts.clear()

    def _drop(self, key: int) -> None:
        salt = self._salts.pop(key)
        shelf = self._shelves[salt]
        shelf.remove(key)
        if not shelf.keys:
            del self._shelves[salt]
