"""Predicted outputs: in step, after replacements, insertions and deletions, and when nothing was predicted."""

from __future__ import annotations

import pytest

from drafters.conformance import EOS_ID, one
from drafters.fakes import FakeSequence
from outrider.drafters.base import Committed
from outrider.drafters.prediction import PredictionDrafter

PREDICTION = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]


def drafter_at(output: list[int], prediction: list[int]) -> tuple[PredictionDrafter, FakeSequence]:
    drafter = PredictionDrafter(frozenset({EOS_ID}), max_model_len=400)
    seq = FakeSequence([1, 2, *output], num_prompt_tokens=2, prediction=prediction)
    drafter.begin(seq)
    return drafter, seq


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([10], [11, 12, 13]),
        ([10, 11, 12], [13, 14, 15]),
        ([10, 11, 40], [13, 14, 15]),  # one token replaced: go on behind it
        ([10, 11, 40, 13], [14, 15, 16]),
        ([10, 11, 40, 41], []),  # lost
        ([10, 11, 40, 41, 14], []),  # one token is no match
        ([10, 11, 40, 41, 42, 12, 13], [14, 15, 16]),  # an insertion
        ([10, 11, 15, 16], [17, 18, 19]),  # a deletion
        ([40, 41, 10, 11], [12, 13, 14]),  # a start of its own
        ([*PREDICTION[:-1], 21], []),
    ],
)
def test_next_tokens(output: list[int], expected: list[int]) -> None:
    drafter, seq = drafter_at(output, PREDICTION)
    assert list(one(drafter, seq, 3).tokens) == expected


def test_the_longest_then_the_nearest_match_decides() -> None:
    longest = [8, 1, 3, 1, 2, 3, 8, 1, 2, 5]
    assert one(*drafter_at([7, 7, 8, 1, 2], longest), 1).tokens == [5]
    forwards = [1, 2, 9, 20, 21, 22, 1, 2, 4]
    assert one(*drafter_at([1, 2, 9, 30, 31, 1, 2], forwards), 1).tokens == [4]  # the place before would be nearer
    backwards = [1, 2, 3, 9, 8, 1, 2, 5]
    assert one(*drafter_at([8, 1, 2, 5, 7, 7, 3, 9], backwards), 1).tokens == [8]  # there is none after


def test_nothing_without_a_prediction_and_nothing_behind_its_end_of_sequence() -> None:
    assert not len(one(*drafter_at([10, 11], []), 4))
    assert one(*drafter_at([10], [10, 11, EOS_ID, 12]), 4).tokens == [11, EOS_ID]


def test_scores_are_high_in_step_and_low_after_a_difference() -> None:
    in_step, replaced = one(*drafter_at([10, 11, 12], PREDICTION), 3), one(*drafter_at([10, 11, 40], PREDICTION), 3)
    assert in_step.scores is not None
    assert replaced.scores is not None
    assert min(in_step.scores) > 0.8
    assert list(in_step.scores) == sorted(in_step.scores)
    assert replaced.scores[0] < 0.5


def test_truncate_goes_back_to_the_place() -> None:
    drafter, seq = drafter_at([10, 11, 12], PREDICTION)
    before = one(drafter, seq, 4)
    seq.token_ids = [*seq.token_ids, 40, 41, 18, 19]
    drafter.observe(seq, Committed([40, 41, 18, 19]))
    assert one(drafter, seq, 1).tokens == [20]
    seq.token_ids = seq.token_ids[:5]
    drafter.truncate(seq, 5)
    assert one(drafter, seq, 4) == before
