"""Whether drafting pays, by what it saved and took."""

from __future__ import annotations

import pytest

from outrider.engine.utility import Utility

PLAIN = 0.02


def run(utility: Utility, size: int, steps: int, saved: float, taken: float) -> float:
    """Steps that draft where it pays or may be tried; seconds spent."""
    spent = 0.0
    for _ in range(steps):
        asks = utility.pays(size) or utility.may_try(size)
        utility.observe(size, PLAIN, PLAIN, saved * asks, taken * asks)
        spent += taken * asks
    return spent


@pytest.mark.parametrize(("saved", "pays"), [(0.002, False), (0.0085, False), (0.012, True), (0.03, True)])
def test_drafting_stays_where_it_saves_more_than_it_takes(saved: float, pays: bool) -> None:
    utility = Utility()
    assert utility.pays(8)  # until something was seen
    run(utility, 8, 2000, saved, 0.010)
    assert utility.pays(8) == pays


@pytest.mark.parametrize("taken", [0.0005, 0.01, 0.1])
def test_finding_out_costs_a_hundredth(taken: float) -> None:
    utility = Utility()
    run(utility, 8, 500, 0.0, taken)
    assert run(utility, 8, 20_000, 0.0, taken) == pytest.approx(0.01 * 20_000 * PLAIN, rel=0.1)


def test_it_comes_back_where_trying_shows_that_it_pays_and_does_not_flap_at_the_border() -> None:
    utility = Utility()
    run(utility, 8, 500, 0.0, 0.01)
    run(utility, 8, 20_000, 0.0103, 0.01)
    assert not utility.pays(8)
    run(utility, 8, 20_000, 0.02, 0.01)
    assert utility.pays(8)
    run(utility, 8, 2000, 0.0098, 0.01)
    assert utility.pays(8)


def test_a_larger_batch_starts_with_the_verdict_of_a_smaller_one_and_not_the_other_way_round() -> None:
    utility = Utility()
    run(utility, 8, 500, 0.0, 0.01)
    assert not utility.pays(32)
    assert utility.pays(4)
    utility.observe(32, PLAIN, PLAIN, 0.0, 0.0)
    assert not utility.pays(32)
