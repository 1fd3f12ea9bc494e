"""The cost curve: its shape, and a store that may be absent, broken or closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.target import costs
from outrider.target.costs import CostCurve, curve_of, measure, monotone, with_context
from target.tiny import reference, target_of


def test_the_curve_is_linear_between_and_beyond_its_points() -> None:
    curve = CostCurve((1, 2, 4), (1.0, 2.0, 3.0))
    assert [curve(rows) for rows in (1, 2, 3, 4, 6)] == [1.0, 2.0, 2.5, 3.0, 4.0]


def test_more_rows_never_cost_less() -> None:
    assert monotone([1, 2, 3, 4], [2.0, 1.0, 5.0, 3.0]).seconds == (1.0, 1.0, 3.0, 3.0)


def test_measuring_calls_every_number_of_rows() -> None:
    called: list[int] = []
    curve = measure(called.append, (1, 2, 3), rounds=2)
    assert called == [3, 1, 2, 3, 1, 2, 3]
    assert curve.rows == (1, 2, 3)


@pytest.mark.parametrize("length", [2, 5, 256])
def test_a_curve_is_stored_and_read_again(length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    target = target_of(reference("llama"), exact=False, max_model_len=length)
    curve = curve_of(target)
    monkeypatch.setattr(costs, "_too_slow", lambda *_: False)
    monkeypatch.setattr(costs, "measure", lambda *_: pytest.fail("measured twice"))
    assert curve_of(target) == curve
    assert curve(1) <= curve(2)


@pytest.mark.parametrize(("factor", "kept"), [(100.0, False), (0.001, True)])
def test_a_curve_taken_on_a_busy_machine_is_measured_again(
    factor: float, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    target = target_of(reference("llama"), exact=False)
    curve = curve_of(target)
    stored = CostCurve(curve.rows, tuple(factor * value for value in curve.seconds))
    costs._store(target, stored)
    assert (curve_of(target) == stored) is kept


@pytest.mark.parametrize("text", ["", "{", "{}", '{"rows": [1]}'])
def test_a_broken_store_is_measured_anew(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    target = target_of(reference("llama"), exact=False)
    curve_of(target)
    (file,) = (tmp_path / "costs").iterdir()
    file.write_text(text)
    curve = curve_of(target)
    assert len(curve.rows) == len(costs.ROWS)
    assert list((tmp_path / "costs").iterdir()) == [file]


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file"))
    target = target_of(reference("llama"), exact=False, backend="gather")
    assert curve_of(target).rows == costs.ROWS
    assert "set OUTRIDER_CACHE" in caplog.text


def test_longer_contexts_cost_each_row_and_each_sequence() -> None:
    near = CostCurve((1, 8), (1.0, 1.7))
    curve = with_context(near, CostCurve((1, 8), (2.0, 9.7)), 256, 1256)
    assert curve.per_token == pytest.approx(0.001)  # 8 rows gain 7 seconds more than one does
    assert curve.per_read == pytest.approx(0.0)
    behind = curve.behind(756, 2)
    assert behind(4) == pytest.approx(near(4) + 4 * 0.5)
    assert curve.behind(256, 1)(8) == pytest.approx(1.7)
    assert curve.behind(0, 1)(1) == pytest.approx(0.744)
    assert CostCurve((1, 8), (1.0, 1.7)).behind(5000, 3)(8) == pytest.approx(1.7)  # nothing known of contexts
