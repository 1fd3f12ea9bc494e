"""Accounting: counters per step, rates pooled over tokens, sums, and no rate of nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.accounting import SpeculationStats
from outrider.core.draft import EMPTY, Draft
from outrider.errors import ContractError

CHAIN = Draft([5, 6, 7])


def test_nothing_counted_gives_none_and_no_nan() -> None:
    stats = SpeculationStats()
    assert stats.mean_acceptance_length is None
    assert stats.vllm_mean_acceptance_length is None
    assert stats.draft_acceptance_rate is None
    assert stats.per_position_acceptance == []
    assert stats.conditional_acceptance == []
    assert "NaN" not in json.dumps(stats.to_dict())


def test_three_steps_by_hand() -> None:
    stats = SpeculationStats()
    stats.add_first_token()
    stats.add_step(CHAIN, [0, 1], 3)
    stats.add_step(CHAIN, [], 1)
    stats.add_step(Draft([1]), [0], 2)
    stats.add_step(EMPTY, [], 1)
    assert (stats.num_steps, stats.num_spec_steps, stats.num_plain_steps) == (4, 3, 1)
    assert (stats.num_draft_tokens, stats.num_accepted_draft_tokens) == (7, 3)
    assert (stats.num_committed_tokens, stats.num_completion_tokens, stats.num_committed_draft_tokens) == (7, 8, 3)
    assert stats.proposed_per_position == [3, 2, 2]
    assert stats.tested_per_position == [3, 1, 1]
    assert stats.accepted_per_position == [2, 1]
    assert stats.acceptance_histogram == [1, 1, 1]
    assert stats.mean_acceptance_length == 7 / 4
    assert stats.vllm_mean_acceptance_length == 1 + 3 / 3
    assert stats.draft_acceptance_rate == 3 / 7
    assert stats.per_position_acceptance == [2 / 3, 1 / 3, 0.0]
    assert stats.conditional_acceptance == [2 / 3, 1.0, 0.0]


def test_a_position_that_was_never_tested_has_no_conditional_acceptance() -> None:
    stats = SpeculationStats()
    stats.add_step(CHAIN, [], 1)
    assert stats.conditional_acceptance == [0.0, None, None]
    assert stats.per_position_acceptance == [0.0, 0.0, 0.0]


def test_positions_are_depths_of_the_tree() -> None:
    stats = SpeculationStats()
    stats.add_step(Draft([1, 2, 3, 4], parents=[-1, -1, 0, 0]), [1], 2)  # the accepted sibling has no child
    assert stats.num_draft_tokens == 4
    assert stats.proposed_per_position == [1, 1]
    assert stats.tested_per_position == [1]
    assert stats.accepted_per_position == [1]
    assert stats.conditional_acceptance == [1.0, None]


def test_tokens_behind_a_stop_are_accepted_but_not_committed() -> None:
    stats = SpeculationStats()
    stats.add_step(CHAIN, [0, 1, 2], 1)
    assert (stats.num_accepted_draft_tokens, stats.num_committed_tokens, stats.num_committed_draft_tokens) == (3, 1, 1)
    assert stats.mean_acceptance_length == 1.0


@pytest.mark.parametrize("committed", [-1, 3])
def test_more_than_one_token_after_the_accepted_ones_is_an_error(committed: int) -> None:
    with pytest.raises(ContractError, match=f"committed {committed} tokens after accepting 1"):
        SpeculationStats().add_step(CHAIN, [0], committed)


steps = st.lists(
    st.integers(0, 4).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size), st.booleans())), max_size=12
)


def _record(history: list[tuple[int, int, bool]]) -> SpeculationStats:
    stats = SpeculationStats()
    for size, accepted, cut in history:
        stats.add_step(Draft([0] * size), range(accepted), accepted + (not cut))
    return stats


@settings(deadline=None)
@given(left=steps, right=steps)
def test_counts_add_up(left: list[tuple[int, int, bool]], right: list[tuple[int, int, bool]]) -> None:
    first, second = _record(left), _record(right)
    before = first.to_dict()
    assert first + second == _record(left + right) == SpeculationStats.pooled([second, first])
    assert first.to_dict() == before


@settings(deadline=None)
@given(history=steps)
def test_counters_agree_with_each_other(history: list[tuple[int, int, bool]]) -> None:
    stats = _record(history)
    assert sum(stats.accepted_per_position) == stats.num_accepted_draft_tokens
    assert sum(at * count for at, count in enumerate(stats.acceptance_histogram)) == stats.num_accepted_draft_tokens
    assert sum(stats.acceptance_histogram) == stats.num_spec_steps
    assert sum(stats.proposed_per_position) == stats.num_draft_tokens  # chains: one node a position
    assert all(rate is None or 0.0 <= rate <= 1.0 for rate in stats.conditional_acceptance)
    product = 1.0
    for conditional, unconditional in zip(stats.conditional_acceptance, stats.per_position_acceptance, strict=True):
        product *= conditional or 0.0
        assert unconditional <= product + 1e-12


def test_the_dict_is_a_copy_with_vllms_names() -> None:
    stats = _record([(3, 2, False)])
    dumped = stats.to_dict()
    assert {"num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "acceptance_histogram"} <= dumped.keys()
    assert {"mean_acceptance_length", "draft_acceptance_rate"} <= dumped.keys()
    histogram = dumped["acceptance_histogram"]
    assert isinstance(histogram, list)
    histogram.append(1)
    assert stats.acceptance_histogram == [0, 0, 1]


def test_nodes_count_for_every_method_behind_them() -> None:
    stats = SpeculationStats()
    sources = ["prediction+suffix", "auto/prediction", "ngram#2:part", ""]
    stats.add_step(Draft([1, 2, 3, 4], sources=sources, source="merge"), [0, 1, 2], 2)
    stats.add_step(Draft([1, 2], source="prediction"), [0], 2)
    assert stats.drafted_by == {"prediction": 4, "suffix": 1, "ngram": 1}
    assert stats.committed_by == {"prediction": 3, "suffix": 1}
    total = stats + SpeculationStats(drafted_by={"suffix": 2})
    assert total.drafted_by == {"prediction": 4, "suffix": 3, "ngram": 1}
    assert stats.drafted_by["suffix"] == 1
