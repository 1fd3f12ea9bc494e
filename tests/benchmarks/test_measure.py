"""Arithmetic of the comparison scripts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import (
    ForwardClock,
    bootstrap,
    call_rate,
    call_stats,
    charge_rest,
    common_length,
    cut_at_end,
    decode_rate,
    mixed,
    ratio,
    row_curves,
    wilson,
)

from outrider.bench.data import Prompt
from outrider.bench.runner import Row
from outrider.outputs import RequestStats


def row(num_tokens: int, seconds: float, prefill: float = 1.0) -> Row:
    stats = RequestStats(prefill_seconds=prefill, verify_seconds=seconds)
    return Row("p", "t", 0, "v", 5, [7] * num_tokens, "", "length", True, stats)


def clock(rows: list[int], *spans: tuple[float, float]) -> ForwardClock:
    return ForwardClock([begin for begin, _ in spans], [end for _, end in spans], rows)


def test_plain_call_splits_prefill_from_decoding() -> None:
    stats = call_stats(10.0, 14.0, 8, 3, clock([8, 1, 1], (10.5, 12.0), (12.2, 13.0), (13.0, 13.9)))
    assert stats.prefill_seconds == pytest.approx(2.0)
    assert stats.time_to_first_token == pytest.approx(2.0)
    assert stats.verify_seconds == pytest.approx(1.7)
    assert stats.decode_seconds == pytest.approx(2.0)
    assert (stats.num_steps, stats.mean_acceptance_length) == (2, 1.0)


def test_candidates_in_the_first_forward_are_not_prefill() -> None:
    stats = call_stats(0.0, 3.0, 6, 5, clock([8, 3], (0.0, 2.0), (2.0, 3.0)))
    assert stats.prefill_seconds == pytest.approx(1.5)
    assert stats.verify_seconds == pytest.approx(1.5)
    assert (stats.num_steps, stats.mean_acceptance_length, stats.num_completion_tokens) == (2, 2.5, 5)


def test_draft_before_the_first_forward_is_decoding_but_for_its_prefill() -> None:
    draft = clock([6, 1, 1], (0.0, 1.0), (1.0, 1.5), (4.0, 4.5))
    stats = call_stats(0.0, 6.0, 6, 4, clock([8, 2], (2.0, 4.0), (4.5, 6.0)), draft)
    assert stats.prefill_seconds == pytest.approx(1.0 + 1.5)
    assert stats.draft_seconds == pytest.approx(1.0)
    assert stats.verify_seconds == pytest.approx(2.0)
    assert stats.prefill_seconds + stats.decode_seconds == pytest.approx(6.0)


def test_clock_reads_rows_from_either_kind_of_argument() -> None:
    forwards = ForwardClock()
    forwards.begin(None, (), {"input_ids": np.zeros((1, 4))})
    forwards.end()
    forwards.begin(None, (np.zeros((1, 2)),), {})
    forwards.end()
    assert forwards.rows == [4, 2]
    assert all(seconds >= 0 for seconds in forwards.durations())
    forwards.clear()
    assert (forwards.rows, forwards.durations()) == ([], [])


def test_everything_but_prefill_is_charged_to_decoding() -> None:
    stats = charge_rest(RequestStats(prefill_seconds=1.0, verify_seconds=2.0, overhead_seconds=0.1), 3.5)
    assert stats.decode_seconds == pytest.approx(2.5)


def test_rates_are_pooled() -> None:
    rows = [row(3, 1.0), row(11, 3.0)]
    assert decode_rate(rows) == pytest.approx(12 / 4)
    assert call_rate(rows) == pytest.approx(14 / 6)
    assert decode_rate([]) is None


def test_ratio_of_answers_in_pairs() -> None:
    found = ratio([row(3, 1.0), row(11, 2.0), row(1, 0.0)], [row(3, 2.0), row(11, 10.0), row(1, 0.0)])
    assert found is not None
    assert found.pooled == pytest.approx((12 / 3) / (12 / 12))
    assert (found.median, found.lowest) == (pytest.approx(3.5), pytest.approx(2.0))
    assert found.call == pytest.approx((14 / 5) / (14 / 14))
    assert found.low is not None
    assert found.high is not None
    assert 2.0 <= found.low <= found.pooled <= found.high <= 5.0
    assert ratio([row(1, 0.0)], [row(1, 0.0)]) is None


def test_bootstrap_of_constant_units_has_no_width_and_of_one_unit_none() -> None:
    low, high = bootstrap(lambda sums: sums[0] / sums[1], np.array([[1.0, 2.0]] * 5))
    assert (low, high) == (0.5, 0.5)
    assert bootstrap(lambda sums: sums[0], np.array([[1.0]])) == (None, None)


def test_wilson_against_published_values() -> None:
    assert wilson(15, 148) == (pytest.approx(0.0624, abs=1e-4), pytest.approx(0.1605, abs=1e-4))
    assert wilson(0, 20) == (pytest.approx(0.0, abs=1e-9), pytest.approx(0.1611, abs=1e-4))
    assert wilson(0, 0) == (0.0, 1.0)


@settings(deadline=None)
@given(st.integers(0, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate(counts: tuple[int, int]) -> None:
    successes, trials = counts
    low, high = wilson(successes, trials)
    assert 0.0 <= low <= high <= 1.0
    if trials:
        assert low - 1e-12 <= successes / trials <= high + 1e-12


def test_mixed_takes_tasks_in_turn() -> None:
    prompts = [Prompt(f"{task}{index}", task, ("x",)) for task, size in (("a", 3), ("b", 1)) for index in range(size)]
    assert [prompt.prompt_id for prompt in mixed(prompts, 3)] == ["a0", "b0", "a1"]
    assert len(mixed(prompts, 99)) == 4
    assert mixed([], 4) == []


def test_answers_end_with_the_first_end_id() -> None:
    assert cut_at_end([5, 2, 2, 2], frozenset({2})) == [5, 2]
    assert cut_at_end([5, 6], frozenset({2})) == [5, 6]
    assert cut_at_end([5, 2, 6], frozenset()) == [5, 2, 6]


def test_common_length() -> None:
    assert common_length([1, 2, 3], [1, 2, 4]) == 2
    assert common_length([1], [1, 2]) == 1
    assert common_length([], []) == 0


class FakeForward:
    def __init__(self, time: list[float], cost: float) -> None:
        self._time, self._cost = time, cost
        self.calls = 0

    def run(self, num_rows: int) -> None:
        self.calls += 1
        slow = 100.0 if self.calls <= 2 else 0.0  # the first round is a warm-up
        self._time[0] += self._cost * num_rows + slow

    def reset(self) -> None:
        self._time[0] += 1000.0


def test_curves_leave_out_warm_up_and_reset() -> None:
    time = [0.0]
    forwards = {"a": FakeForward(time, 1.0), "b": FakeForward(time, 3.0)}
    curves = row_curves(forwards, (1, 4), 1, clock=lambda: time[0])
    assert curves == {"a": [1.0, 4.0], "b": [3.0, 12.0]}
    assert all(forward.calls == 4 for forward in forwards.values())
