"""Writing a datastore: documents of token ids in, segments with their sorted positions out.

The positions are sorted by libdivsufsort (pydivsufsort) over the bytes of the ids, which stand backwards and
big-endian; offsets that are no multiple of an id's width are left out. A segment is sorted in memory, some
40 bytes a token where an id takes two bytes, so more than ``SEGMENT_TOKENS`` make several.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.drafters.datastore import HEADER, Header, SegmentInfo, read_header
from outrider.errors import ConfigError

SEGMENT_TOKENS = 1 << 25


class Writer:
    """Writes a new datastore, or new segments of one. Nothing counts before ``close``, which replaces the header."""

    def __init__(
        self,
        path: Path,
        *,
        vocab_size: int,
        fingerprint: str,
        model: str = "",
        append: bool = False,
        segment_tokens: int = SEGMENT_TOKENS,
    ) -> None:
        """Raises ConfigError when ``path`` is taken or cannot be written, or (``append``) holds no datastore of this
        tokenizer."""
        self._path, self._limit = path, segment_tokens
        self.header = _existing(path, fingerprint) if append else _new(path, vocab_size, fingerprint, model)
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass  # better now than after all the work
        self._segments = list(self.header.segments)
        self._documents: list[NDArray[Any]] = []
        self._sources: dict[str, None] = {}
        self._pending = 0

    def add(self, tokens: Sequence[int], source: str = "") -> None:
        """One document. One of fewer than two tokens continues nothing and is left out; one that is longer than a
        segment is cut. Raises ConfigError for an id outside the vocabulary."""
        ids = np.asarray(tokens, dtype=np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.header.vocab_size:
            raise ConfigError(
                f"{source}: token id {ids.max()} is outside the tokenizer's vocabulary of {self.header.vocab_size}"
            )
        for start in range(0, len(ids), self._limit):
            part = ids[start : start + self._limit]
            if len(part) < 2:
                continue
            self._documents.append(part.astype(self.header.token_type))
            self._pending += len(part)
            self._sources[source] = None
            if self._pending >= self._limit:
                self._flush()

    def close(self) -> Header:
        """Sort and write what is left, then the header. Raises ConfigError when no document had a token."""
        self._flush()
        if len(self._segments) == len(self.header.segments):
            raise ConfigError("CORPUS: no text in it; name text files, JSON lines, or folders of them")
        header = self.header.model_copy(update={"segments": self._segments})
        part = self._path / f"{HEADER}.part"
        with _writing(self._path):
            part.write_text(header.dumps(), encoding="utf-8")
            os.replace(part, self._path / HEADER)
        return header

    def _flush(self) -> None:
        if not self._pending:
            return
        edge = np.array([self.header.boundary], dtype=self.header.token_type)
        pieces = [piece for document in reversed(self._documents) for piece in (edge, document[::-1])]
        ids = np.concatenate([*pieces, edge], dtype=self.header.token_type)
        number = len(self._segments)
        info = SegmentInfo(
            name=f"segment-{number:04}",
            num_tokens=self._pending,
            num_documents=len(self._documents),
            sources=list(self._sources),
            tokens_bytes=ids.nbytes,
            tokens_sha256=hashlib.sha256(ids.data).hexdigest(),
            order_sha256="",
        )
        self._documents, self._sources, self._pending = [], {}, 0
        order = sort_positions(ids, self.header.boundary)
        info = info.model_copy(update={"order_sha256": hashlib.sha256(order.data).hexdigest()})
        with _writing(self._path):
            for (name, _, _), data in zip(info.files, (ids, order), strict=True):
                data.tofile(self._path / name)
        self._segments.append(info)


def sort_positions(ids: NDArray[Any], boundary: int) -> NDArray[np.uint32]:
    """Offsets of the big-endian ``ids`` that are followed by another one of their document (which stands before them),
    sorted by the ids from there on. Boundaries have no place."""
    from pydivsufsort import divsufsort

    order = divsufsort(ids.view(np.uint8))
    width = ids.dtype.itemsize
    order = order[order % width == 0] // width
    inside = ids != boundary
    inside[1:] &= inside[:-1]  # the id after it in reading order
    return np.asarray(order[inside[order]]).astype("<u4")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"OUT {path}: cannot be written ({error.strerror or error}); name another place") from None


def _existing(path: Path, fingerprint: str) -> Header:
    header = read_header(path)
    if header.fingerprint != fingerprint:
        raise ConfigError(
            f"--append: datastore {path} holds ids of another tokenizer (that of {header.model}); append with "
            f"--model {header.model}, or build another one"
        )
    return header


def _new(path: Path, vocab_size: int, fingerprint: str, model: str) -> Header:
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise ConfigError(f"OUT {path}: it exists; add to a datastore with --append, or name another place")
    return Header(vocab_size=vocab_size, fingerprint=fingerprint, model=model)
