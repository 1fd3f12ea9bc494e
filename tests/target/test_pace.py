"""The correction of the cost curve by what steps take."""

from __future__ import annotations

import pytest

from outrider.target.pace import LiveCurve, Pace


def test_a_faster_machine_is_noticed_where_it_is_faster() -> None:
    pace = Pace()
    for _ in range(400):  # memory has become twice as fast, arithmetic has not
        pace.observe(1, 1.0, 0.5)
        pace.observe(8, 1.2, 1.2)
    assert pace.factor(1) == pytest.approx(0.5, abs=0.05)
    assert pace.factor(8) == pytest.approx(1.0, abs=0.05)
    assert pace.factor(1) < pace.factor(2) < pace.factor(4) < pace.factor(8)
    assert pace.factor(64) == pace.factor(16) == pytest.approx(1.0, abs=0.1)
    assert pace.corrected(lambda rows: 2.0 * rows)(8) == pytest.approx(16.0, abs=1.0)


def test_what_is_not_seen_comes_to_resemble_what_is() -> None:
    pace = Pace()
    for _ in range(4000):
        pace.observe(1, 1.0, 3.0)
    assert pace.factor(1) == pytest.approx(3.0, abs=0.05)
    assert pace.factor(8) > 2.5


def test_a_machine_that_is_slower_altogether_is_noticed_everywhere() -> None:
    pace = Pace()
    for _ in range(60):
        pace.observe(4, 1.0, 1.5)
    assert pace.factor(4) == pytest.approx(1.5, abs=0.05)
    assert pace.factor(1) > 1.25
    assert pace.factor(16) > 1.25


def test_an_interruption_moves_little() -> None:
    pace = Pace()
    pace.observe(4, 1.0, 1000.0)
    assert pace.factor(4) < 1.1
    for _ in range(10_000):
        pace.observe(4, 1.0, 1e9)
    assert pace.factor(4) <= 8.0


def test_a_live_curve_follows_what_is_timed() -> None:
    curve = LiveCurve(lambda rows: 0.010 + 0.001 * rows)
    assert curve(1) == pytest.approx(0.011)
    for _ in range(200):
        curve.observe(1, 0.0055)
        curve.observe(8, 0.018)
    assert curve(1) == pytest.approx(0.0055, rel=0.1)
    assert curve(8) == pytest.approx(0.018, rel=0.1)
