"""The context index and the store of outputs against counting by hand."""

from __future__ import annotations

from array import array
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafters.context_index import ContextIndex
from outrider.drafters.output_store import OutputStore

texts = st.lists(st.integers(0, 2), min_size=1, max_size=50)
many = settings(max_examples=200, deadline=None)


def backwards(tokens: list[int], depth: int) -> array[int]:
    context = tokens[::-1][:depth]
    return array("i", context + [-1] * (depth - len(context)))


def longest(documents: list[list[int]], context: list[int], depth: int) -> tuple[int, list[tuple[int, int]]]:
    """Length of the longest end of ``context`` that occurs, and (document, end) of each occurrence."""
    for length in range(min(depth, len(context)), 0, -1):
        found = [
            (which, end)
            for which, document in enumerate(documents)
            for end in range(length - 1, len(document))
            if document[end - length + 1 : end + 1] == context[-length:]
        ]
        if found:
            return length, found
    return 0, []


@many
@given(text=texts, depth=st.integers(2, 8), pieces=st.lists(st.integers(1, 20), max_size=8))
def test_occurrences_equal_counting(text: list[int], depth: int, pieces: list[int]) -> None:
    index = ContextIndex(depth)
    done = 0
    for size in [*pieces, len(text)]:
        index.extend(text[done : done + size])
        done += size
    last = index.end - 1
    match = index.match(index.context(last), limit=1000, without=last)
    length, found = 0, []
    for size in range(min(depth, len(text)), 0, -1):
        found = [end for end in range(size - 1, len(text) - 1) if text[end - size + 1 : end + 1] == text[-size:]]
        if found:
            length = size
            break
    assert match.length == length
    assert [end - index.origin for end in match.ends] == found[::-1]


@many
@given(text=texts, more=texts, depth=st.integers(2, 8))
def test_truncate_undoes_extend(text: list[int], more: list[int], depth: int) -> None:
    index, plain = ContextIndex(depth), ContextIndex(depth)
    for each in (index, plain):
        each.extend(text)
    index.extend(more)
    index.truncate(plain.end)
    assert vars(index) == vars(plain)


def test_a_limit_thins_occurrences_evenly() -> None:
    index = ContextIndex(2)
    index.extend([1, 2] * 100)
    match = index.match(index.context(index.end - 1), limit=10, without=index.end - 1)
    assert match.length == 2
    assert 9 <= len(match.ends) <= 11
    assert list(match.ends) == sorted(match.ends, reverse=True)


@many
@given(
    documents=st.lists(texts, min_size=1, max_size=9),
    capacity=st.integers(1, 5),
    context=texts,
    depth=st.integers(2, 6),
)
def test_store_equals_counting_over_the_documents_it_keeps(
    documents: list[list[int]], capacity: int, context: list[int], depth: int
) -> None:
    store = OutputStore(depth, capacity)
    for key, document in enumerate(documents):
        store.add("", key, document)
    kept = documents[-capacity:]
    assert len(store) == len(kept)
    length, found = longest(kept, context, depth)
    of_store, continuations = store.match("", backwards(context, depth), limit=1000, count=3)
    assert of_store == length
    cut = [list(takewhile(lambda token: token >= 0, continuation)) for continuation in continuations]
    assert sorted(cut) == sorted(kept[which][end + 1 : end + 4] for which, end in found)


def test_least_recently_used_output_makes_room() -> None:
    store = OutputStore(4, 2)
    store.add("", 1, [1, 2, 3])
    store.add("", 2, [4, 5, 6])
    assert store.match("", backwards([1, 2], 4), 10, 2)[0] == 2
    store.add("", 3, [7, 8, 9])
    assert store.match("", backwards([1, 2], 4), 10, 2)[0] == 2
    assert store.match("", backwards([4, 5], 4), 10, 2)[0] == 0


def test_salts_do_not_see_each_other() -> None:
    store = OutputStore(4, 10)
    store.add("a", 1, [1, 2, 3])
    assert store.match("b", backwards([1, 2], 4), 10, 2) == (0, [])
    store.add("b", 2, [1, 2, 4])
    assert [list(rest) for rest in store.match("b", backwards([1, 2], 4), 10, 2)[1]] == [[4]]


def test_a_key_is_kept_once_and_nothing_without_room() -> None:
    store = OutputStore(4, 10)
    store.add("", 1, [1, 2])
    store.add("", 1, [1, 2, 3, 1, 2])
    assert len(store) == 1
    assert len(store.match("", backwards([1, 2], 4), 10, 2)[1]) == 2
    none = OutputStore(4, 0)
    none.add("", 1, [1, 2, 3])
    assert len(none) == 0


def test_threads_share_a_store() -> None:
    store = OutputStore(6, 20)

    def work(worker: int) -> None:
        for step in range(60):
            store.add(str(worker % 2), worker * 1000 + step, [step % 5, 1, 2, 3, worker])
            length, rest = store.match(str(worker % 2), backwards([1, 2], 6), 5, 4)
            assert length in (0, 2)
            assert all(tokens[0] == 3 for tokens in rest)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(store) == 20
