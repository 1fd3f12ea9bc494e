"""From corpora to a datastore: tokenise in batches with the target's tokenizer, then sort and write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from outrider.drafters.datastore import Header
from outrider.index.corpus import Corpora, Document
from outrider.index.writer import Writer
from outrider.target.tokenizer import Tokenizer
from outrider.target.vocab import fingerprint

_BATCH = 1 << 21  # characters that are tokenised at a time

Progress = Callable[[float, float], None]  # done, total


def build(
    out: Path, corpora: Corpora, tokenizer: Tokenizer, model: str, *, append: bool, progress: Progress | None = None
) -> Header:
    """Write (or ``append`` to) the datastore ``out``; ``progress`` is told bytes read. Raises ConfigError."""
    writer = Writer(
        out, vocab_size=len(tokenizer), fingerprint=fingerprint(tokenizer), model=_place(model), append=append
    )
    for batch in _batches(corpora.documents()):
        for document, ids in zip(batch, _encode(tokenizer, batch), strict=True):
            writer.add(ids, document.source)
        if progress is not None:
            progress(corpora.done_bytes, corpora.total_bytes)
    return writer.close()


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encode(tokenizer: Tokenizer, batch: Sequence[Document]) -> list[Sequence[int]]:
    """Ids of each document: those that a model gave where they are of this tokenizer, else those of its text."""
    ids: list[Sequence[int] | None] = [_given(tokenizer, document) for document in batch]
    texts = [document.text for document, given in zip(batch, ids, strict=True) if given is None]
    encoded = iter(tokenizer.encode_batch(texts))
    return [next(encoded) if given is None else given for given in ids]


def _given(tokenizer: Tokenizer, document: Document) -> Sequence[int] | None:
    ids = document.token_ids
    if not ids or max(ids) >= len(tokenizer) or tokenizer.decode(ids) != document.text:
        return None
    return ids


def _place(model: str) -> str:
    return os.path.abspath(model) if os.path.exists(model) else model


def describe(path: Path, header: Header) -> dict[str, Any]:
    """What a datastore holds, as plain values."""
    return {
        "path": str(path),
        "num_tokens": header.num_tokens,
        "num_documents": header.num_documents,
        "num_bytes": header.num_bytes,
        "vocab_size": header.vocab_size,
        "bytes_per_token_id": header.token_type.itemsize,
        "model": header.model,
        "fingerprint": header.fingerprint,
        "segments": [
            segment.model_dump(include={"name", "num_tokens", "num_documents", "sources"})
            for segment in header.segments
        ],
    }
