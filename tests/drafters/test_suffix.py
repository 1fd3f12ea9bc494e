"""Suffix decoding: frequencies against counting, shapes, limits, the choice between request and store."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.conformance import CONTEXT, EOS_ID, check_draft, one
from drafters.fakes import FakeSequence
from outrider.config import SpeculativeConfig
from outrider.core.draft import Draft
from outrider.drafters import registry
from outrider.drafters.base import Committed
from outrider.drafters.growth import GrowthRule, grow
from outrider.drafters.suffix import SuffixDrafter

lists = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12)


def suffix(**options: Any) -> SuffixDrafter:
    drafter = registry.build(SpeculativeConfig(method="suffix", **options), CONTEXT)
    assert isinstance(drafter, SuffixDrafter)
    return drafter


def count(continuations: list[list[int]], path: list[int]) -> int:
    return sum(rest[: len(path)] == path for rest in continuations)


def frequency(continuations: list[list[int]], path: list[int]) -> float:
    product = 1.0
    for depth in range(len(path)):
        going_on = sum(len(rest) > depth and rest[:depth] == path[:depth] for rest in continuations)
        product *= count(continuations, path[: depth + 1]) / going_on
    return product


@settings(max_examples=200, deadline=None)
@given(continuations=lists, min_prob=st.sampled_from([0.0, 0.1, 0.3, 0.6]))
def test_a_tree_holds_every_path_over_the_least_probability(continuations: list[list[int]], min_prob: float) -> None:
    rule = GrowthRule(min_prob, tree=True, eos_ids=frozenset())
    draft, _ = grow(continuations, 3, 1000, rule, "suffix")
    drafted = sorted([draft.tokens[node] for node in draft.path(leaf)] for leaf in range(len(draft)))
    paths = {tuple(rest[:depth]) for rest in continuations for depth in range(1, len(rest) + 1)}
    for path in map(list, paths):
        if abs(frequency(continuations, path) - min_prob) > 1e-9:  # products of one value differ in their last bit
            assert (path in drafted) == (frequency(continuations, path) >= min_prob)
    assert len(drafted) == len(set(map(tuple, drafted)))
    assert set(map(tuple, drafted)) <= paths


@settings(max_examples=200, deadline=None)
@given(continuations=lists, budget=st.integers(1, 8))
def test_a_chain_follows_the_most_frequent_token(continuations: list[list[int]], budget: int) -> None:
    draft, expected = grow(continuations, 3, budget, GrowthRule(0.0, tree=False, eos_ids=frozenset()), "suffix")
    path: list[int] = []
    for token in draft.tokens:
        assert count(continuations, [*path, token]) == max(count(continuations, [*path, t]) for t in range(3))
        path.append(token)
    assert len(path) == budget or not any(count(continuations, [*path, t]) for t in range(3))
    assert draft.scores is not None
    product, total = 1.0, 0.0
    for score in draft.scores:
        product *= score
        total += product
    assert expected == pytest.approx(total)


@settings(max_examples=100, deadline=None)
@given(continuations=lists, budget=st.integers(1, 6))
def test_a_small_tree_is_the_best_part_of_the_full_one(continuations: list[list[int]], budget: int) -> None:
    rule = GrowthRule(0.0, tree=True, eos_ids=frozenset())
    small, expected = grow(continuations, 3, budget, rule, "suffix")
    full, _ = grow(continuations, 3, 1000, rule, "suffix")

    def chance(draft: Draft, node: int) -> float:
        product = 1.0
        for each in draft.path(node):
            assert draft.scores is not None
            product *= draft.scores[each]
        return product

    best = sorted((chance(full, node) for node in range(len(full))), reverse=True)[:budget]
    assert expected == pytest.approx(sum(best))
    assert len(small) == min(budget, len(full))


def test_length_follows_the_match_and_the_factor() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3]
    for factor, length in ((0.3, 0), (1.0, 3), (2.0, 6)):
        drafter, seq = suffix(suffix_decoding_max_spec_factor=factor), FakeSequence(text)
        drafter.begin(seq)
        assert len(one(drafter, seq, 32)) == length


def test_a_finished_output_helps_the_next_request_of_its_tenant() -> None:
    drafter = suffix()
    first = FakeSequence([0, 1, 10, 11, 12, 13, 14], seq_id=1, num_prompt_tokens=2, cache_salt="a")
    drafter.begin(first)
    drafter.release(first)
    for salt, expected in (("a", [13, 14]), ("b", [])):
        seq = FakeSequence([5, 11, 12], seq_id=2, num_prompt_tokens=2, cache_salt=salt)
        drafter.begin(seq)
        assert list(one(drafter, seq, 8).tokens) == expected
    prompt_only = FakeSequence([7, 0, 1], seq_id=3, num_prompt_tokens=2, cache_salt="a")
    drafter.begin(prompt_only)
    assert not len(one(drafter, prompt_only, 8))  # prompts are not stored


def test_the_better_of_request_and_store_is_proposed() -> None:
    drafter = suffix()
    earlier = FakeSequence([0, 21, 22, 23, 24, 25, 26, 27], seq_id=1, num_prompt_tokens=1)
    drafter.begin(earlier)
    drafter.release(earlier)
    seq = FakeSequence([24, 30, 31, 21, 22, 23, 24], seq_id=2, num_prompt_tokens=2)
    drafter.begin(seq)
    assert list(one(drafter, seq, 8).tokens) == [25, 26, 27]
    seq.token_ids += [30, 31, 21]
    drafter.observe(seq, Committed([30, 31, 21]))
    assert list(one(drafter, seq, 8).tokens)[:3] == [22, 23, 24]


def test_a_preempted_sequence_is_stored_once() -> None:
    drafter = suffix()
    seq = FakeSequence([0, 1, 2, 3], seq_id=1, num_prompt_tokens=1)
    for more in ([], [4, 5, 6]):
        seq.token_ids += more
        drafter.begin(seq)
        drafter.release(seq)
    assert len(drafter.store) == 1


def test_tree_branches_and_stops_at_the_end_of_sequence() -> None:
    drafter = suffix(suffix_decoding_tree=True, suffix_decoding_max_spec_factor=4.0)
    seq = FakeSequence([1, 2, 3, 0, 1, 2, 4, 0, 1, 2, EOS_ID, 5, 1, 2])
    drafter.begin(seq)
    draft = one(drafter, seq, 8)
    check_draft(draft, seq, 8)
    assert {draft.tokens[node] for node in range(len(draft)) if draft.parent(node) == -1} == {3, 4, EOS_ID}
    assert not draft.is_chain


def test_no_store_when_none_is_wanted() -> None:
    drafter = suffix(suffix_decoding_max_cached_requests=0)
    seq = FakeSequence([0, 1, 2, 3], num_prompt_tokens=1)
    drafter.begin(seq)
    drafter.release(seq)
    assert len(drafter.store) == 0
