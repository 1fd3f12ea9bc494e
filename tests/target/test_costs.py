"""The cost curve: its shape, and a store that may be absent, broken or closed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from outrider.target import costs
from outrider.target.costs import CostCurve, curve_of, measure, monotone, spread_tokens, with_context
from outrider.target.experts import PackedExperts
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


@pytest.mark.parametrize(("count", "vocab_size"), [(1, 96), (64, 96), (64, 64), (64, 49152), (2, 1), (5, 2)])
def test_rows_of_a_measurement_are_of_distinct_tokens(count: int, vocab_size: int) -> None:
    tokens = spread_tokens(count, vocab_size)
    assert len(tokens) == count
    assert all(0 <= token < vocab_size for token in tokens)
    assert len(set(tokens)) == min(count, vocab_size)


def test_the_tokens_of_a_measurement_are_spread_and_other_ones_for_another_number_of_rows() -> None:
    chosen = [spread_tokens(count, 49152) for count in costs.ROWS]
    assert len({token for tokens in chosen for token in tokens}) == sum(costs.ROWS)
    ordered = sorted(chosen[-1])
    assert max(high - low for low, high in pairwise(ordered)) < 3 * 49152 / len(ordered)


def test_rows_of_a_measurement_touch_as_many_experts_as_rows_of_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    experts, chosen = 32, 4
    model = reference("qwen3_moe", num_experts=experts, num_experts_per_tok=chosen, moe_intermediate_size=16)
    touched: dict[int, list[int]] = {}
    forward = PackedExperts.forward

    def counted(self: PackedExperts, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        touched.setdefault(len(index), []).append(len(index.unique()))
        return forward(self, hidden, index, weights)

    target = target_of(model, exact=False)
    monkeypatch.setattr(PackedExperts, "forward", counted)
    curve_of(target)
    assert set(touched[1]) == {chosen}
    for rows in (2, 4, 8, 16):
        expected = experts * (1 - (1 - chosen / experts) ** rows)
        assert sum(touched[rows]) / len(touched[rows]) == pytest.approx(expected, rel=0.2)


def test_curves_of_mixtures_that_choose_other_numbers_of_experts_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    targets = [target_of(reference("qwen3_moe", num_experts_per_tok=chosen), exact=False) for chosen in (1, 2)]
    assert len({costs._path(target, None) for target in targets}) == 2
