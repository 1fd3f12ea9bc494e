"""Prompt lookup against its definition, written out as a scan of the text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.fakes import FakeSequence, NoNoise
from outrider.core.draft import Draft
from outrider.drafters.lookup import acceptance_prior
from outrider.drafters.ngram import NgramDrafter, NgramIndex

EOS = 9
tokens = st.lists(st.sampled_from([0, 1, 2, EOS]), min_size=1, max_size=60)


def propose(text: Sequence[int], n_min: int, n_max: int, budget: int) -> Draft:
    drafter = NgramDrafter(n_min, n_max, frozenset({EOS}), max_model_len=10_000)
    seq = FakeSequence(list(text))
    drafter.begin(seq)
    return drafter.propose([seq], [budget], NoNoise())[0]


def definition(text: list[int], n_min: int, n_max: int, budget: int) -> list[int]:
    for n in range(n_max, n_min - 1, -1):
        ends = [end for end in range(n - 1, len(text) - 1) if text[end - n + 1 : end + 1] == text[-n:]]
        if not ends or n > len(text):
            continue
        period = len(text) - 1 - ends[-1]
        copied = text[ends[-1] + 1 :]
        if len(text) >= 2 * period and text[-period:] == text[-2 * period : -period]:
            copied = copied * budget
        chain = []
        for token in copied[:budget]:
            chain.append(token)
            if token == EOS:
                break
        return chain
    return []


@settings(max_examples=400, deadline=None)
@given(text=tokens, n_min=st.integers(1, 3), more=st.integers(0, 4), budget=st.integers(1, 12))
def test_equals_the_definition(text: list[int], n_min: int, more: int, budget: int) -> None:
    assert list(propose(text, n_min, n_min + more, budget).tokens) == definition(text, n_min, n_min + more, budget)


@settings(max_examples=200, deadline=None)
@given(text=tokens, cut=st.integers(0, 60), n_min=st.integers(1, 3), more=st.integers(0, 3))
def test_truncate_restores_the_index(text: list[int], cut: int, n_min: int, more: int) -> None:
    grown, short = NgramIndex(n_min, n_min + more), NgramIndex(n_min, n_min + more)
    grown.extend(text)
    grown.truncate(cut)
    short.extend(text[:cut])
    assert vars(grown) == vars(short)


@settings(max_examples=100, deadline=None)
@given(text=tokens)
def test_only_tokens_of_the_context_are_proposed(text: list[int]) -> None:
    assert set(propose(text, 1, 4, 16).tokens) <= set(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([1, 2, 3, 7, 1, 2, 4, 8, 1, 2], [4, 8, 1, 2]),  # the last match, not the first; the copy ends with the text
        ([5, 1, 2, 3, 6, 7, 2, 3, 0, 1, 2, 3], [6, 7, 2, 3]),  # the longer match wins over the later one
        ([1, 2, 3, 1, 2, 3], [1, 2, 3, 1]),  # one whole period has been repeated: go on
        ([1, 2, EOS, 3, 1, 2], [EOS]),
        ([1, 2, 3, 4], []),
    ],
)
def test_examples(text: list[int], expected: list[int]) -> None:
    assert list(propose(text, 2, 3, 4).tokens) == expected


def test_scores_grow_with_the_match_and_fall_with_disagreement() -> None:
    short, long = propose([1, 2, 3, 0, 1, 2], 2, 5, 1), propose([5, 6, 7, 1, 2, 3, 0, 5, 6, 7, 1, 2], 2, 5, 1)
    agreed = propose([1, 2, 3, 0, 1, 2, 3, 4, 1, 2], 2, 5, 1)
    disputed = propose([1, 2, 5, 0, 1, 2, 3, 4, 1, 2], 2, 5, 1)
    scores = [draft.scores[0] for draft in (disputed, short, agreed) if draft.scores]
    assert scores == sorted(set(scores))
    assert long.scores is not None
    assert short.scores is not None
    assert long.scores[0] > short.scores[0]


def test_prior_is_monotone() -> None:
    by_context = [acceptance_prior(context, 0, 0) for context in range(40)]
    assert by_context == sorted(by_context)
    assert acceptance_prior(3, 0, 4) < acceptance_prior(3, 2, 4) < acceptance_prior(3, 4, 4) < 1.0
