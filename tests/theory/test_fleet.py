"""Fleets, and the arithmetic of published examples, with its slips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.theory import fleet


def serve(demand: float, rate: float, gpus: int = 1) -> fleet.Fleet:
    return fleet.fleet(demand, rate, gpus_per_replica=gpus, price_per_gpu_hour=2.5, utilisation=0.7)


@given(st.floats(1.0, 1e6), st.floats(10.0, 1e4), st.integers(1, 8))
def test_a_fleet_serves_its_demand_and_is_no_larger_than_that_takes(demand: float, rate: float, gpus: int) -> None:
    found = serve(demand, rate, gpus)
    assert found.load <= 0.7 + 1e-6
    assert (found.replicas - 1) * rate * 0.7 < demand + 1e-6
    assert found.gpus == found.replicas * gpus
    tokens = demand * fleet.HOURS_PER_MONTH * 3600
    assert found.cost_per_million * tokens / 1e6 == pytest.approx(found.cost_per_month)
    assert found.cost_per_million >= fleet.cost_per_million(2.5 * gpus, rate, 0.7) - 1e-9


def test_a_fleet_of_one_replica_saves_nothing() -> None:
    found = fleet.benefit(serve(100, 1000), serve(100, 2000), 1000, 1.0, one_time=500.0)
    assert (found.saved_per_month, found.months) == (0.0, None)
    large = fleet.benefit(serve(100_000, 1000), serve(100_000, 2000), 1000, 1.0, one_time=500.0)
    assert large.saved_per_month == pytest.approx(2.5 * 730 * (143 - 72))
    assert large.months == pytest.approx(500 / large.saved_per_month)


def test_a_draft_on_a_gpu_of_its_own_has_to_earn_it() -> None:
    found = fleet.benefit(serve(1e5, 1000, 4), serve(1e5, 1200, 5), 1000, 5 / 4, 0.0)
    assert found.break_even_rate == 1250
    assert found.saved_per_month < 0


def test_figures_that_add_up_are_left_alone() -> None:
    """https://neelmishra.github.io/blog/mlops/llm-inference/inference-cost-optimization.html: 70B on four A100."""
    stated = {"gpus": 4, "price_per_gpu_hour": 2.21, "price_per_hour": 8.84, "tokens_per_second": 2400}
    assert fleet.findings({**stated, "utilisation": 0.7, "cost_per_million": 1.46}) == ([], 2)


def test_a_table_that_mixes_two_utilisations_is_found_out() -> None:
    """The same page, another table: the rows of single GPUs are reckoned at full use, though its formula has 70 %, so
    that they cannot be compared with the one above."""
    row = {"price_per_hour": 2.21, "tokens_per_second": 2900, "cost_per_million": 0.21}
    assert fleet.findings(row)[0] == []
    (found,), _ = fleet.findings({**row, "utilisation": 0.7})
    assert found.follows == pytest.approx(0.302, abs=0.001)
    assert "0.21" in found.text
    assert "0.3024" in found.text


def test_a_speculation_example_whose_price_and_time_disagree() -> None:
    """https://birat.codes/blog/inference-optimization-speculative-decoding: 100 tokens in 110 ms are said to cost 0.15
    dollars, and 0.015 with speculation, "90 %" less. The share is right, and holds vLLM's part; the price is that of
    4909 dollars an hour. At 4 dollars an hour the 100 tokens cost 0.00012."""
    stated = {"cost": 0.15, "seconds": 0.11, "price_per_hour": 4.0}
    (found,), checked = fleet.findings(stated)
    assert checked == 1
    assert found.follows == pytest.approx(0.000122, abs=1e-6)
    assert fleet.findings({"cost_before": 0.15, "cost_after": 0.015, "saved_share": 0.9}) == ([], 1)
    (share,), _ = fleet.findings({"cost_before": 0.045, "cost_after": 0.015, "saved_share": 0.9})
    assert share.follows == pytest.approx(2 / 3)


def test_an_example_of_speculation_against_an_api_with_two_prices() -> None:
    """https://agentbeck.bot/report/84388: 500 requests of 2000 tokens a day, 2 s each on a GPU of 2 dollars an hour:
    its 0.56 dollars are right; an API at 0.80 a million then takes 0.80 for the day, not the 0.40 that it says."""
    day = {"requests": 500.0, "tokens_per_request": 2000.0, "tokens": 1e6}
    assert fleet.findings({**day, "price_per_hour": 2.0, "seconds": 1000.0, "cost": 0.56})[0] == []
    (found,), _ = fleet.findings({**day, "cost_per_million": 0.80, "cost": 0.40})
    assert (found.name, found.stated, found.follows) == ("cost", 0.40, pytest.approx(0.80))


def test_throughput_times_time_is_tokens() -> None:
    (found,), _ = fleet.findings({"tokens_per_second": 1000, "seconds": 60, "tokens": 6000})
    assert found.text == "tokens: stated 6,000, but 1,000 tokens/s x 60 s = 60,000"
    with pytest.raises(ConfigError, match="token_rate"):
        fleet.findings({"token_rate": 1.0})
