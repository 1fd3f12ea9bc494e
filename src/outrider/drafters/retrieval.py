"""Searching datastores: the longest context of a sequence that occurs in them, and what followed it there.

One binary search over the sorted positions of a segment finds the neighbours of the context, and with them the longest
part of it that occurs; two more give the interval of its occurrences. A probe compares two slices of bytes. A context
never reaches over a document's beginning, nor a continuation over its end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from outrider.drafters.datastore import Datastore, Segment


class Search:
    """Where a context stands in a segment. ``length``: how many tokens of it occur there, 0 for none."""

    def __init__(self, segment: Segment, context: bytes) -> None:
        """``context``: the ids as they stand in the segment, last one first."""
        self.segment, self._context, self._width = segment, context, segment.ids.dtype.itemsize
        places, key = segment.places, self._key(len(context))
        self._rank = bisect_left(places, context, key=key)
        near = [rank for rank in (self._rank - 1, self._rank) if 0 <= rank < len(places)]
        self.length = max((_shared(context, key(places[rank])) // self._width for rank in near), default=0)

    def interval(self, length: int) -> range:
        """Ranks of the positions with the last ``length`` tokens before them; empty when there are none."""
        if length > self.length:
            return range(0)
        wanted, places = self._context[: length * self._width], self.segment.places
        key = self._key(len(wanted))
        low = bisect_left(places, wanted, 0, self._rank, key=key)
        return range(low, bisect_right(places, wanted, self._rank, len(places), key=key))

    def continuations(self, ranks: range, count: int) -> list[list[int]]:
        """The ``count`` tokens after each of ``ranks``, -1 behind a document's end."""
        segment = self.segment
        places = segment.order[ranks.start : ranks.stop : ranks.step].astype(np.int64)
        before = places[:, None] - np.arange(1, count + 1)
        found = segment.ids[np.maximum(before, 0)].astype(np.int64)  # the first id is a boundary
        found[np.logical_or.accumulate(found == segment.boundary, axis=1)] = -1
        rows: list[list[int]] = found.tolist()
        return rows

    def _key(self, size: int) -> Callable[[int], bytes]:
        text, width = self.segment.bytes, self._width
        return lambda place: bytes(text[place * width : place * width + size])


def retrieve(
    stores: Sequence[Datastore], tokens: Sequence[int], min_length: int, limit: int, count: int
) -> tuple[int, list[list[int]]]:
    """Length of the longest end of ``tokens`` that occurs in ``stores`` and goes on there, and its continuations.

    They have ``count`` tokens, filled up with -1. Of more than ``limit`` occurrences an even sample of about that many
    is taken; fewer are filled up with occurrences of shorter contexts, down to ``min_length`` tokens: what follows a
    rare context says little by itself. Nothing is found when no context of ``min_length`` occurs.
    """
    searches = [Search(segment, store.encode(tokens)) for store in stores for segment in store.segments]
    longest = max((search.length for search in searches), default=0)
    rows: list[list[int]] = []
    total = 0
    for length in range(longest, max(min_length, 1) - 1, -1):
        intervals = [search.interval(length) for search in searches]
        before, total = total, sum(map(len, intervals))
        if total > before:
            step = -(-total // limit)
            for search, interval in zip(searches, intervals, strict=True):
                if interval:
                    rows += search.continuations(interval[::step], count)
            limit -= min(limit, total)
        if not limit:
            break
    return (longest, rows) if rows else (0, [])


def _shared(left: bytes, right: bytes) -> int:
    """Bytes on which both agree from the beginning on."""
    size = min(len(left), len(right))
    return next((at for at in range(size) if left[at] != right[at]), size)
