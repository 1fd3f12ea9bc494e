"""Datastores: searches against trying every position, appending, documents, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drafters.stores import Documents, brute_force, folder, opened, written
from outrider.drafters import datastore
from outrider.drafters.datastore import HEADER, Datastore, read_header, verify
from outrider.drafters.retrieval import retrieve
from outrider.errors import ConfigError
from outrider.index import writer

VOCABULARIES = (4, 65535, 65536, 200_000)  # two bytes an id in the first two


def corpora(tokens: st.SearchStrategy[int]) -> st.SearchStrategy[list[list[int]]]:
    texts = st.lists(st.lists(tokens, max_size=30), min_size=1, max_size=6)
    return texts.filter(lambda documents: any(len(document) > 1 for document in documents))


@st.composite
def searches(draw: st.DrawFn) -> tuple[int, list[list[list[int]]], list[int]]:
    """A vocabulary, the documents of one to three corpora, a context."""
    vocab_size = draw(st.sampled_from(VOCABULARIES))
    tokens = st.sampled_from([0, 1, 255, 256, vocab_size - 2, vocab_size - 1] if vocab_size > 4 else [0, 1, 2, 3])
    segments = draw(st.lists(corpora(tokens), min_size=1, max_size=3))
    text = draw(st.sampled_from([document for documents in segments for document in documents]))
    end = draw(st.integers(0, len(text)))
    context = draw(st.lists(tokens, max_size=4)) + text[max(0, end - 12) : end] + draw(st.lists(tokens, max_size=2))
    return vocab_size, segments, context


def search(store: Datastore, context: list[int], count: int) -> tuple[int, list[list[int]]]:
    length, rows = retrieve([store], context, 1, 1000, count)
    return length, sorted(rows)


@settings(max_examples=300, deadline=None)
@given(case=searches(), count=st.integers(1, 5), segment_tokens=st.sampled_from([7, 1000]))
@example(case=(4, [[[1, 2]], [[1, 2, 3], [2]]], [0, 1]), count=2, segment_tokens=1000)
def test_a_search_finds_what_trying_every_position_finds(
    case: tuple[int, list[list[list[int]]], list[int]], count: int, segment_tokens: int
) -> None:
    vocab_size, segments, context = case
    together = [
        document[start : start + segment_tokens]
        for documents in segments
        for document in documents
        for start in range(0, len(document), segment_tokens)
    ]
    appended = opened(*segments, vocab_size=vocab_size, segment_tokens=segment_tokens)
    assert search(appended, context, count) == brute_force(together, context, count)


@settings(max_examples=50, deadline=None)
@given(case=searches())
def test_appending_equals_building_the_union(case: tuple[int, list[list[list[int]]], list[int]]) -> None:
    vocab_size, segments, context = case
    union: Documents = [document for documents in segments for document in documents]
    one, many = opened(union, vocab_size=vocab_size), opened(*segments, vocab_size=vocab_size)
    assert search(one, context, 4) == search(many, context, 4)
    assert one.header.num_tokens == many.header.num_tokens
    stores = [opened(documents, vocab_size=vocab_size) for documents in segments]
    length, rows = retrieve(stores, context, 1, 1000, 4)
    assert (length, sorted(rows)) == search(one, context, 4)


def test_nothing_crosses_a_document() -> None:
    store = opened([[1, 2, 3], [4, 5, 6], [3, 4, 7]])
    assert search(store, [2, 3], 3) == (1, [[4, 7, -1]])  # "2 3" ends a document: the 3 of another one goes on
    assert search(store, [3, 4], 3) == (2, [[5, 6, -1], [7, -1, -1], [7, -1, -1]])
    assert search(store, [5, 6], 3) == (0, [])


def test_appending_leaves_the_segments_before_it_alone() -> None:
    path = written([[1, 2, 3]])
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.name != HEADER}
    store = writer.Writer(path, vocab_size=50, fingerprint="test", append=True)
    store.add([4, 5, 6], "more")
    header = store.close()
    assert [segment.name for segment in header.segments] == ["segment-0000", "segment-0001"]
    assert header == read_header(path)
    assert all((path / name).read_bytes() == data for name, data in before.items())


def test_a_sample_is_even_and_bounded() -> None:
    store = opened([[1, 2, 3]] * 30 + [[1, 2, 4]] * 10, [[1, 2, 5]] * 60)
    rows = [row[0] for row in retrieve([store], [0, 1, 2], 1, 10, 1)[1]]
    assert [rows.count(token) for token in (3, 4, 5)] == [3, 1, 6]
    assert len(retrieve([store], [0, 1, 2], 1, 1, 1)[1]) <= 2  # one a segment


def test_shorter_contexts_fill_a_sample_up() -> None:
    store = opened([[1, 2, 3]] * 2 + [[0, 2, 4]] * 5 + [[2, 5]] * 30)
    length, rows = retrieve([store], [0, 1, 2], 1, 20, 1)
    assert length == 2
    assert rows[:2] == [[3], [3]]
    assert 15 <= len(rows) <= 20
    assert retrieve([store], [0, 1, 2], 2, 20, 1) == (2, [[3], [3]])
    assert retrieve([store], [0, 1, 2], 1, 2, 1) == (2, [[3], [3]])


def test_a_short_match_is_none() -> None:
    store = opened([[1, 2, 3, 4]])
    assert retrieve([store], [9, 2], 2, 8, 1) == (0, [])
    assert retrieve([store], [1, 2], 2, 8, 1) == (2, [[3]])
    assert retrieve([store], [], 1, 8, 1) == (0, [])


def test_ids_that_the_files_cannot_hold_end_the_context() -> None:
    store = opened([[1, 2, 3]], vocab_size=65535)
    assert search(store, [65535, 2], 1) == (1, [[3]])
    assert search(store, [2, 70_000], 1) == (0, [])


def spoil(path: Path, name: str, change: Any) -> None:
    (path / name).write_bytes(change((path / name).read_bytes()))


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("name", ["segment-0000.tokens", "segment-0000.order"])
@pytest.mark.parametrize("change", [flip, lambda data: data[:-2], lambda data: data + b"\0"])
def test_a_damaged_segment_is_refused(name: str, change: Any) -> None:
    path = written([[1, 2, 3, 4]])
    Datastore.open(path)
    spoil(path, name, change)
    with pytest.raises(ConfigError, match=rf"{name} is damaged .*outrider index build"):
        Datastore.open(path)


def test_a_large_datastore_is_verified_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    path = written([[1, 2, 3, 4]])
    spoil(path, "segment-0000.order", flip)
    monkeypatch.setattr(datastore, "VERIFIED_BYTES", 3)
    store = Datastore.open(path)
    with pytest.raises(ConfigError, match="checksum"):
        verify(path, store.header)


def edit(path: Path, **values: Any) -> None:
    header = json.loads((path / HEADER).read_text())
    (path / HEADER).write_text(json.dumps({**header, **values}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: edit(path, vocab_size=40), "header.json is damaged .its checksum differs"),
        (lambda path: edit(path, version=2), "has version 2 and this program reads version 1"),
        (lambda path: edit(path, format="x"), "that of something else"),
        (lambda path: (path / HEADER).write_text("{"), "header.json is damaged .it cannot be read"),
        (lambda path: (path / HEADER).write_text("[]"), "that of something else"),
        (lambda path: (path / HEADER).unlink(), "is none: it holds no header.json"),
        (lambda path: (path / "segment-0000.order").unlink(), "segment-0000.order is damaged .it is missing"),
    ],
)
def test_a_damaged_header_is_refused(change: Any, message: str) -> None:
    path = written([[1, 2, 3, 4]])
    change(path)
    with pytest.raises(ConfigError, match=message):
        read_header(path)


def test_another_tokenizer_is_refused() -> None:
    path = written([[1, 2, 3]], fingerprint="theirs")
    with pytest.raises(ConfigError, match=r"another tokenizer \(that of test\).*index build OUT CORPUS... --model"):
        Datastore.open(path, "ours")
    with pytest.raises(ConfigError, match=r"--append: .* another tokenizer"):
        writer.Writer(path, vocab_size=50, fingerprint="ours", append=True)


def test_what_a_writer_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no text in it"):
        written([[], [1]])
    with pytest.raises(ConfigError, match="token id 50 is outside"):
        written([[1, 50]])
    path = written([[1, 2]])
    with pytest.raises(ConfigError, match="it exists; add to a datastore with --append"):
        writer.Writer(path, vocab_size=50, fingerprint="test")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written .*; name another place"):
        writer.Writer(tmp_path / "file" / "out", vocab_size=50, fingerprint="test")
    with pytest.raises(ConfigError, match="there is none"):
        writer.Writer(folder(), vocab_size=50, fingerprint="test", append=True)
