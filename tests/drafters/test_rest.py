"""REST: trees against counting, several datastores, limits, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.conformance import CONTEXT, EOS_ID, one
from drafters.fakes import FakeSequence
from drafters.stores import brute_force, folder, written
from outrider.config import SpeculativeConfig
from outrider.core.draft import Draft
from outrider.drafters import registry
from outrider.drafters.base import Drafter
from outrider.errors import ConfigError

token = st.integers(0, 3)
corpora = st.lists(st.lists(token, min_size=2, max_size=20), min_size=1, max_size=8)


def rest(datastore: object, **options: Any) -> Drafter:
    places = [str(path) for path in datastore] if isinstance(datastore, list) else str(datastore)
    return registry.build(SpeculativeConfig(method="rest", datastore=places, **options), CONTEXT)


def draft_of(drafter: Drafter, tokens: list[int], budget: int = 200) -> Draft:
    seq = FakeSequence(tokens)
    drafter.begin(seq)
    return one(drafter, seq, budget)


@settings(max_examples=100, deadline=None)
@given(first=corpora, second=corpora, tokens=st.lists(token, min_size=1, max_size=8), apart=st.booleans())
def test_a_tree_holds_every_continuation_and_scores_follow_its_counts(
    first: list[list[int]], second: list[list[int]], tokens: list[int], apart: bool
) -> None:
    places = [written(first), written(second)] if apart else [written([*first, *second])]
    draft = draft_of(rest(places, rest_max_context=3, rest_continuation_tokens=3), tokens)
    _, rows = brute_force([*first, *second], tokens[-3:], 3)
    counts = Counter(tuple(row[:depth]) for row in rows for depth in (1, 2, 3) if row[depth - 1] >= 0)
    paths = [tuple(draft.tokens[node] for node in draft.path(leaf)) for leaf in range(len(draft))]
    assert sorted(paths) == sorted(counts)
    assert draft.scores is not None or not rows
    for siblings in draft.children():
        assert [counts[paths[n]] for n in siblings] == sorted((counts[paths[n]] for n in siblings), reverse=True)


def test_the_longest_context_of_all_datastores_decides() -> None:
    short, long = written([[2, 3, 4]] * 9), written([[1, 2, 3, 5]])
    assert draft_of(rest([short, long], rest_min_context=3), [1, 2, 3]).tokens == [5]
    assert draft_of(rest([short, long], rest_max_context=2), [1, 2, 3]).tokens == [4, 5]
    assert draft_of(rest(short), [1, 2, 3]).tokens == [4]
    assert draft_of(rest([short, long], rest_max_continuations=1), [1, 2, 3]).tokens == [5]


def test_a_context_shorter_than_the_least_is_not_followed() -> None:
    path = written([[1, 2, 3, 4]])
    assert draft_of(rest(path, rest_min_context=2), [9, 3]).tokens == ()
    assert draft_of(rest(path), [9, 3]).tokens == [4]


def test_a_chain_takes_the_most_frequent_token() -> None:
    path = written([[1, 2, 3, 4]] * 2 + [[1, 2, 5, 6]] * 3)
    chain = draft_of(rest(path, rest_tree=False), [1, 2])
    assert list(chain.tokens) == [5, 6]
    assert chain.is_chain
    assert len(draft_of(rest(path), [1, 2])) == 4


def test_nothing_is_drafted_behind_an_end_token_or_beyond_the_length_asked_for() -> None:
    path = written([[1, 2, 3, EOS_ID, 4, 5], [6, *range(7, 20)]])
    assert draft_of(rest(path), [1, 2]).tokens == [3, EOS_ID]
    assert draft_of(rest(path), [6]).tokens == list(range(7, 17))
    assert draft_of(rest(path, rest_continuation_tokens=2), [6]).tokens == [7, 8]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "datastore: method 'rest' needs it"),
        ({"datastore": "x", "verifier": "block"}, "rest_tree: verifier 'block' takes chains only; set rest_tree to f"),
        ({"datastore": "x", "rest_min_context": 9, "rest_max_context": 8}, "rest_min_context=9 is over rest_max_con"),
        ({"datastore": [""]}, "datastore holds an empty path"),
        ({"datastore": []}, "datastore names no folder"),
    ],
)
def test_refused_before_any_file_is_read(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.check(SpeculativeConfig(method="rest", **values))


def test_files_are_checked_before_weights_load() -> None:
    good, none = written([[1, 2, 3]]), folder()
    registry.check_files(SpeculativeConfig(method="rest", datastore=str(good)))
    with pytest.raises(ConfigError, match=r"there is none; make it with `outrider index build"):
        registry.check_files(SpeculativeConfig(method="rest", datastore=[str(good), str(none)]))


def test_a_datastore_of_another_tokenizer_is_refused() -> None:
    config = SpeculativeConfig(method="rest", datastore=str(written([[1, 2, 3]], fingerprint="theirs")))
    with pytest.raises(ConfigError, match="ids of another tokenizer"):
        registry.build(config, replace(CONTEXT, tokenizer_fingerprint=lambda: "ours"))
    assert registry.build(config, replace(CONTEXT, tokenizer_fingerprint=lambda: "theirs"))
