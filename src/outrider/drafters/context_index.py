"""Positions of a text, sorted by the context that ends at them: a suffix tree in the form of one array of integers.

A suffix tree answers "where did the last m tokens occur before, and how often did each token follow". So does the list
of all positions sorted by their contexts read backwards (the suffix array of the reversed text): the occurrences of a
context are one interval of it. Appending a token adds one position and moves no other, removing it undoes that, and
a position costs eight bytes, where a trie of depth d costs up to d nodes a token.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_BOUNDARY = -1  # stands before every document, `depth` times, so that no context reaches into the one before
_BULK = 16  # from this many new tokens on, one merge is cheaper than single insertions


@dataclass(frozen=True, slots=True)
class Match:
    """The longest context seen before: its length, and where it ended, latest first."""

    length: int
    ends: Sequence[int]


NO_MATCH = Match(0, ())


class ContextIndex:
    """A text of one or more documents with its positions in context order. Contexts count up to ``depth`` tokens.

    A position is an offset into the stored text; ``origin`` is the first one of the first document.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._text = array("i", [_BOUNDARY]) * depth
        self._order = array("i")

    @property
    def origin(self) -> int:
        """Position of the first token."""
        return self.depth

    @property
    def end(self) -> int:
        """Position after the last token."""
        return len(self._text)

    def tokens(self, start: int, stop: int) -> array[int]:
        """The tokens at positions ``start`` to ``stop``, cut at the end of the text; -1 marks a document's end."""
        return self._text[start:stop]

    def context(self, end: int) -> array[int]:
        """The ``depth`` tokens that end at position ``end``, read backwards, padded with -1."""
        return self._text[end : end - self.depth : -1]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append ``tokens`` to the last document."""
        first = len(self._text)
        if len(tokens) >= _BULK:
            self._text.extend(tokens)
            self._merge(range(first, len(self._text)))
            return
        for end, token in enumerate(tokens, start=first):
            self._text.append(token)
            self._order.insert(self._rank(self.context(end)), end)

    def truncate(self, end: int) -> None:
        """Remove all positions from ``end`` on; undoes ``extend``."""
        if len(self._text) - end >= _BULK:
            self.forget(end, len(self._text))
            del self._text[end:]
        while len(self._text) > end:
            del self._order[self._rank(self.context(len(self._text) - 1)) - 1]
            self._text.pop()

    def start_document(self) -> int:
        """Begin a new document after the last one; returns the position of its first token."""
        if len(self._text) > self.depth:
            self._text.extend([_BOUNDARY] * self.depth)
        return len(self._text)

    def forget(self, start: int, stop: int) -> None:
        """Drop the positions from ``start`` to ``stop`` from the order; their tokens stay until ``compact``."""
        order = np.array(self._order, dtype=np.intc)
        kept = order[(order < start) | (order >= stop)]
        self._order = array("i", kept.tobytes())

    def compact(self, documents: Sequence[tuple[int, int]]) -> list[int]:
        """Keep only ``documents`` (start, length; ascending, none forgotten); returns their new starts."""
        text = array("i", [_BOUNDARY]) * self.depth
        starts = []
        for start, length in documents:
            starts.append(len(text))
            text.extend(self._text[start : start + length])
            text.extend([_BOUNDARY] * self.depth)
        if documents:
            del text[-self.depth :]
        old = np.array([start for start, _ in documents], dtype=np.intc)
        order = np.array(self._order, dtype=np.intc)
        owner = np.searchsorted(old, order, side="right") - 1
        moved = order + (np.array(starts, dtype=np.intc) - old)[owner] if documents else order
        self._text, self._order = text, array("i", moved.astype(np.intc).tobytes())
        return starts

    def match(self, context: array[int], limit: int, without: int = -1) -> Match:
        """The longest beginning of ``context`` (backwards, as ``context()`` gives it) among the positions.

        ``without`` is a position to leave out. Of more than ``limit`` occurrences, about ``limit`` are returned,
        evenly spaced in context order.
        """
        order = self._order
        rank = self._rank(context)
        below = rank - 2 if rank and order[rank - 1] == without else rank - 1
        length = 0
        if below >= 0:
            length = _shared(context, self.context(order[below]))
        if rank < len(order):
            length = max(length, _shared(context, self.context(order[rank])))
        if not length:
            return NO_MATCH
        wanted, key = context[:length], self._prefix_key(length)
        low = bisect_left(order, wanted, 0, rank, key=key)
        high = bisect_right(order, wanted, rank, len(order), key=key)
        step = -(-(high - low) // limit)
        ends = sorted(order[low:high:step], reverse=True)
        if without >= 0:
            ends = [end for end in ends if end != without]
        return Match(length, ends)

    def _prefix_key(self, length: int) -> Callable[[int], array[int]]:
        text = self._text
        return lambda end: text[end : end - length : -1]

    def _rank(self, context: array[int]) -> int:
        """Index in the order after all positions whose context is not above ``context``."""
        return bisect_right(self._order, context, key=self._prefix_key(self.depth))

    def _merge(self, ends: range) -> None:
        """Insert many positions at once."""
        key = self._prefix_key(self.depth)
        contexts = {end: key(end) for end in ends}
        new = sorted(ends, key=contexts.__getitem__)
        merged, done = array("i"), 0
        for end in new:
            rank = bisect_right(self._order, contexts[end], done, key=key)
            merged.extend(self._order[done:rank])
            merged.append(end)
            done = rank
        merged.extend(self._order[done:])
        self._order = merged


def _shared(left: array[int], right: array[int]) -> int:
    """Length of the common beginning of two contexts, up to where either document starts."""
    size = 0
    for a, b in zip(left, right, strict=True):
        if a != b or a == _BOUNDARY:
            break
        size += 1
    return size
