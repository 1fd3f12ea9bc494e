"""Load schedules: what they may be, and which K is best where."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.export.schedule import (
    LoadSchedule,
    Measurement,
    best_num_tokens,
    expected_tokens,
    read_schedule,
    schedule_for,
)
from outrider.target.costs import CostCurve


def test_expected_tokens_of_even_chances_is_the_geometric_sum() -> None:
    assert expected_tokens([0.8] * 4, 4) == pytest.approx((1 - 0.8**5) / (1 - 0.8))
    assert expected_tokens([0.5, 0.2], 0) == 1.0
    assert expected_tokens([0.5, 0.2], 2) == pytest.approx(1 + 0.5 + 0.1)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_k_is_that_of_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    chances = sorted((rng.random() for _ in range(8)), reverse=True)
    rows = [1, 2, 4, 8, 16, 64, 256]
    cost = CostCurve(rows, sorted(rng.uniform(0.01, 0.2) for _ in rows))
    draft = CostCurve([1, 64], sorted(rng.uniform(0.001, 0.01) for _ in range(2)))
    batch = rng.randint(1, 40)
    found = best_num_tokens(chances, cost, batch, draft, 0.001)

    def speed(k: int) -> float:
        tokens, kept = 1.0, 1.0
        for chance in chances[:k]:
            kept *= chance
            tokens += kept
        return tokens / (cost(batch * (1 + k)) + k * draft(batch) + 0.001)

    assert speed(found) == pytest.approx(max(speed(k) for k in range(9)))


def test_speculation_ends_where_arithmetic_catches_up() -> None:
    measured = Measurement(
        conditional_acceptance=[0.8, 0.7, 0.6, 0.5], rows=[1, 32, 256], seconds=[0.02, 0.021, 0.2], max_batch=64
    )
    schedule = schedule_for(measured)
    assert schedule.falls
    assert schedule.levels[0].num_tokens == 4
    assert schedule.levels[-1] == (schedule.levels[-1].first, 64, 0) or schedule.levels[-1].num_tokens == 1


def test_free_rows_take_all_and_drafts_that_are_never_right_take_none() -> None:
    def free(rows: int) -> float:
        return 0.02

    assert best_num_tokens([0.5] * 6, free, 8) == 6
    assert best_num_tokens([0.0] * 6, free, 8) == 0


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[2, 4, 3]], "begin at 1"),
        ([[1, 4, 3], [6, 8, 1]], "from 5 on out"),
        ([[1, 4, 3], [4, 8, 1]], "overlap"),
        ([[1, 0, 3]], "no range"),
        ([[1, 4, -1]], "no range"),
        ([[1, 4]], "three whole numbers"),
        ([], "three whole numbers"),
        ([[1, 4, True]], "three whole numbers"),
    ],
)
def test_wrong_schedules_say_what_is_wrong(rows: list[list[int]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LoadSchedule.of(rows)


def test_neighbours_of_one_k_are_one_level() -> None:
    assert LoadSchedule.of([[1, 4, 3], [5, 8, 3], [9, 9, 0]]).rows() == [[1, 8, 3], [9, 9, 0]]


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(json.dumps([[1, 4, 3], [5, 8, 0]]))
    assert read_schedule(file).most == 3
    measured = {"conditional_acceptance": [0.9, 0.9], "rows": [1, 64], "seconds": [0.02, 0.021], "max_batch": 4}
    file.write_text(json.dumps(measured))
    assert read_schedule(file).rows() == [[1, 4, 2]]
    file.write_text(json.dumps({**measured, "seconds": [0.02]}))
    with pytest.raises(ConfigError, match="seconds"):
        read_schedule(file)
    file.write_text("3")
    with pytest.raises(ConfigError, match="rows"):
        read_schedule(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_schedule(tmp_path / "missing.json")
