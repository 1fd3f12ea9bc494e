"""A drafter meets a sequence only where its drafts will earn what following the text takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.meetings import Meetings
from outrider.engine.sequence import Sequence

STEP = 0.01


def seq(seq_id: int, length: int, left: int | None, method: str = "eagle3", written: int = 0) -> Sequence:
    limit = None if left is None else left + written
    fake: Any = SimpleNamespace(seq_id=seq_id, method=method, token_ids=[0] * length, output_ids=[0] * written)
    fake.params = SimpleNamespace(max_tokens=limit)
    return cast(Sequence, fake)


def learned(token: float, earned: float, size: int = 8, steps: int = 50) -> Meetings:
    """Following a token takes ``token`` seconds, a committed one earns ``earned`` where so many decode."""
    out = Meetings()
    out.met(seq(10_000, 100, 50), 100 * token)
    for _ in range(steps):
        out.settle([seq(10_001 + at, 100, 50) for at in range(size)], 4, 4 * earned)
    return out


def test_a_long_text_with_little_left_is_not_met() -> None:
    meetings = learned(token=0.001, earned=0.002)
    assert meetings.refuses(seq(0, 100, 90), 8, STEP)
    assert not meetings.refuses(seq(1, 100, 110), 8, STEP)
    assert meetings.refuses(seq(2, 100, 90, written=500), 8, STEP)
    assert not meetings.refuses(seq(3, 100, None), 8, STEP)


def test_what_takes_next_to_nothing_is_met_even_where_nothing_is_earned() -> None:
    meetings = learned(token=1e-6, earned=-0.002)
    assert not meetings.refuses(seq(0, 100, 50), 8, STEP)
    assert meetings.refuses(seq(1, 10_000, 50), 8, STEP)


def test_what_is_not_known_is_tried() -> None:
    assert not Meetings().refuses(seq(0, 1000, 1), 8, STEP)
    assert not learned(token=0.001, earned=-0.002, steps=49).refuses(seq(0, 100, 1), 8, STEP)  # a bad start is no rule
    meetings = learned(token=0.001, earned=0.002)
    assert not meetings.refuses(seq(0, 100, 1), 16, STEP)  # another batch size
    assert not meetings.refuses(seq(1, 100, 1, method="suffix"), 8, STEP)
    assert meetings.refuses(seq(2, 100, 1), 8, STEP)


def test_where_few_decode_everyone_is_met() -> None:
    meetings = learned(token=0.001, earned=-0.002, size=3)
    assert not any(meetings.refuses(seq(size, 100, 1), size, STEP) for size in (1, 2, 3))


def test_what_is_earned_is_a_mean_in_which_no_step_weighs_more_than_one_in_fifty() -> None:
    meetings = learned(token=0.001, earned=0.01, steps=0)
    for number in range(200):
        meetings.settle([seq(at, 100, 50) for at in range(8)], 4, 4 * (-0.01 if number % 4 else 0.05))
    ((earned, steps),) = meetings._earned.values()
    assert steps == 200
    assert abs(earned - 0.005) < 0.002


def test_an_answer_stays_and_one_in_sixteen_is_met_all_the_same() -> None:
    meetings = learned(token=0.001, earned=0.0)
    refused = [meetings.refuses(seq(number, 100, 50), 8, STEP) for number in range(64)]
    assert refused.count(False) == 4
    assert [meetings.refuses(seq(number, 100, 50), 8, STEP) for number in range(64)] == refused
    for number in range(64):
        meetings.release(seq(number, 100, 50))
    assert meetings._refused == {}


@given(st.floats(1e-6, 1e-2), st.floats(-1e-2, 1e-2), st.integers(1, 4000), st.integers(0, 1000))
def test_more_left_never_turns_a_meeting_down(token: float, earned: float, length: int, left: int) -> None:
    less, more = learned(token, earned), learned(token, earned)
    if not less.refuses(seq(0, length, left), 8, STEP):
        assert not more.refuses(seq(0, length, left + 1), 8, STEP) or earned < 0


def test_a_step_of_several_methods_teaches_nothing() -> None:
    meetings = Meetings()
    meetings.settle([seq(at, 100, 50, "ab"[at % 2]) for at in range(8)], 2, -1.0)
    assert meetings._earned == {}
