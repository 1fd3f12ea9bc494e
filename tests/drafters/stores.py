"""Datastores that tests write from token ids, and what a search in them must find, by trying every position."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from outrider.drafters.datastore import Datastore
from outrider.index.writer import Writer

_ROOT = tempfile.TemporaryDirectory(prefix="outrider-datastores-")  # until the process ends

Documents = Sequence[Sequence[int]]


def folder(name: str = "store") -> Path:
    """A place where nothing is yet."""
    return Path(tempfile.mkdtemp(dir=_ROOT.name)) / name


def written(
    *segments: Documents, vocab_size: int = 50, fingerprint: str = "test", segment_tokens: int = 1 << 20
) -> Path:
    """A datastore that got ``segments`` one after another, all but the first by appending."""
    path = folder()
    for number, documents in enumerate(segments):
        writer = Writer(
            path,
            vocab_size=vocab_size,
            fingerprint=fingerprint,
            model="test",
            append=number > 0,
            segment_tokens=segment_tokens,
        )
        for document in documents:
            writer.add(document, f"corpus {number}")
        writer.close()
    return path


def opened(*segments: Documents, vocab_size: int = 50, segment_tokens: int = 1 << 20) -> Datastore:
    """The same, open."""
    return Datastore.open(written(*segments, vocab_size=vocab_size, segment_tokens=segment_tokens), "test")


def occurrences(documents: Documents, context: Sequence[int], count: int) -> list[list[int]]:
    """What follows ``context`` within the documents, sorted, filled up with -1."""
    length = len(context)
    return sorted(
        [*document[end : end + count], *[-1] * (end + count - len(document))]
        for document in map(list, documents)
        for end in range(length, len(document))
        if document[end - length : end] == list(context)
    )


def brute_force(
    documents: Documents, context: Sequence[int], count: int, min_length: int = 1
) -> tuple[int, list[list[int]]]:
    """Length of the longest end of ``context`` that some document goes on after; what follows it, sorted, and then
    what follows each shorter end that occurs more often."""
    ends = [list(context[len(context) - length :]) for length in range(len(context), min_length - 1, -1)]
    found = [(len(end), occurrences(documents, end, count)) for end in ends]
    rows = [
        row
        for (_, now), (_, before) in zip(found, [(0, []), *found], strict=False)
        if len(now) > len(before)
        for row in now
    ]
    return max((length for length, rows in found if rows), default=0), sorted(rows)
