"""Whether drafting pays, by what it saved and took."""

from __future__ import annotations

import pytest

from outrider.engine.utility import Utility

PLAIN = 0.02


def run(utility: Utility, size: int, steps: int, saved: float, taken: float) -> float:
    """Steps that draft where that pays or is tried; seconds lost."""
    lost = 0.0
    for _ in range(steps):
        asks = utility.pays(size)
        utility.observe(size, PLAIN, PLAIN + taken * asks, saved * asks, taken * asks)
        lost += (taken - saved) * asks
    return lost


@pytest.mark.parametrize(("saved", "pays"), [(0.002, False), (0.004, False), (0.012, True), (0.03, True)])
def test_drafting_stays_where_it_saves_more_than_it_takes(saved: float, pays: bool) -> None:
    utility = Utility()
    assert utility.pays(8)  # until something was seen
    seen = []
    for _ in range(3000):
        seen.append(utility.pays(8))
        run(utility, 8, 1, saved, 0.010)
    assert sum(seen[100:]) > 2800 if pays else sum(seen[100:]) < 300


@pytest.mark.parametrize("taken", [0.0005, 0.01, 0.1])
def test_finding_out_costs_a_two_hundredth(taken: float) -> None:
    utility = Utility()
    run(utility, 8, 500, 0.0, taken)
    steps = 200_000
    assert 0.002 < run(utility, 8, steps, 0.0, taken) / (steps * PLAIN) < 0.0075


def test_it_comes_back_where_a_trial_shows_that_it_pays_and_does_not_flap_at_the_border() -> None:
    utility = Utility()
    run(utility, 8, 500, 0.0, 0.01)
    assert not utility.pays(8)
    run(utility, 8, 20_000, 0.02, 0.01)
    assert utility.pays(8)
    for _ in range(2000):
        run(utility, 8, 1, 0.0098, 0.01)
        assert utility.pays(8)


def test_a_size_has_its_own_verdict_and_a_larger_one_starts_with_it() -> None:
    utility = Utility()
    run(utility, 8, 500, 0.0, 0.01)
    assert not utility.pays(8)
    assert not utility.pays(15)
    assert utility.pays(4)
    assert not utility.pays(16)
    run(utility, 16, 150, 0.03, 0.01)
    assert not utility.pays(16)
    run(utility, 16, 150, 0.03, 0.01)
    assert utility.pays(16)
    assert not utility.pays(8)


def test_what_is_spread_over_steps_counts_when_it_is_spent_for_the_purse_of_trials() -> None:
    def trials(spent: float) -> int:
        utility, count = Utility(), 0
        for _ in range(20_000):
            on = utility.pays(8)
            utility.observe(8, PLAIN, PLAIN, 0.0, 0.001 * on, spent * on)
            count += on
        return count

    assert trials(0.001) > 5 * trials(0.010)
