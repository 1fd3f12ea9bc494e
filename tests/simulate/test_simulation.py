"""What a simulation must conserve, and cases whose answer is known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.simulate.acceptance import NOTHING, Opportunity, Rates, Recorded, draft_of
from outrider.simulate.costs import ChunkCosts, DraftCosts, Measured, MeasuredCosts, Overhead, RooflineCosts, StepShape
from outrider.simulate.loop import Record, Settings, Simulation
from outrider.simulate.report import Result, result_of
from outrider.simulate.workload import Workload, arriving, closed, lengths
from outrider.target.costs import CostCurve
from outrider.theory.expected import chain_tokens
from outrider.theory.gpus import gpu_of
from outrider.theory.roofline import ModelShape

CURVE = CostCurve((1, 2, 4, 8, 16, 32, 64), (0.010, 0.011, 0.012, 0.016, 0.024, 0.040, 0.072))
MACHINE = MeasuredCosts(
    Measured(
        CURVE, ChunkCosts(0.01, 0.001), Overhead(0.001, 0.0002), drafts={"eagle3": DraftCosts((1, 8), (0.001, 0.002))}
    )
)
RATES = {"eagle3": Rates("eagle3", [0.7, 0.6]), "suffix": Rates("suffix", [0.5])}


def simulate(workload: Workload, machine: MeasuredCosts = MACHINE, **options: object) -> tuple[Record, Result]:
    own = Settings(**options)  # type: ignore[arg-type]
    record = Simulation(own, machine, workload, RATES).run()
    return record, result_of(record, own, machine)


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 12),
    outputs=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    prompt=st.integers(1, 700),
    method=st.sampled_from([None, "eagle3", "suffix"]),
    k=st.sampled_from([None, 0, 1, 4]),
    cache=st.sampled_from([None, 1024]),
)
def test_every_token_that_is_asked_for_comes_in_order_of_time(
    clients: int, outputs: list[int], prompt: int, method: str | None, k: int | None, cache: int | None
) -> None:
    asks = closed([prompt] * len(outputs), outputs, clients)
    fixed = k if method else None
    record, result = simulate(asks, method=method, num_speculative_tokens=fixed, kv_cache_tokens=cache, max_num_seqs=8)
    assert sorted(answer.tokens for answer in record.answers) == sorted(outputs)
    assert result.output_tokens == sum(outputs) == pytest.approx(result.throughput * result.seconds)
    for answer in record.answers:
        assert 0.0 <= answer.arrival < answer.first <= answer.last <= record.seconds + 1e-9
        assert answer.tokens - 1 == answer.steps + answer.accepted
        assert answer.accepted <= answer.drafted
    assert record.busy == pytest.approx(record.seconds)
    assert record.forward + record.draft <= record.busy
    assert 0 < result.kv_peak <= 1
    assert 0 < result.fill <= 1


def test_nothing_drafted_is_plain_decoding() -> None:
    asks = closed([100] * 24, [30] * 24, 6)
    assert simulate(asks, method="suffix", num_speculative_tokens=0)[1] == simulate(asks)[1]


def test_one_client_is_the_closed_formula() -> None:
    output, prompt = 50, 100
    _, result = simulate(closed([prompt] * 3, [output] * 3, 1))
    first = 0.01 + 0.001 * prompt + 0.001 + 0.0  # the chunk, and a step's overhead with one sequence
    later = 0.010 + 0.001 + 0.0002
    assert result.seconds == pytest.approx(3 * (first + 0.0002 + (output - 1) * later))
    assert result.tpot_ms["p50"] == pytest.approx(1000 * later)
    assert result.mean_acceptance_length == 1.0


def test_a_fixed_k_commits_what_the_theory_says() -> None:
    _, result = simulate(closed([10] * 40, [200] * 40, 1), method="eagle3", num_speculative_tokens=3)
    assert result.mean_acceptance_length == pytest.approx(chain_tokens([0.7, 0.6], 3), rel=0.02)
    seconds = CURVE(4) + 3 * 0.001 + 0.001 + 0.0002
    assert result.tpot_ms["p50"] == pytest.approx(1000 * seconds / chain_tokens([0.7, 0.6], 3), rel=0.05)


def test_the_planner_speculates_where_rows_are_cheap_and_stops_where_they_are_not() -> None:
    alone, crowd = (
        [simulate(closed([10] * 64, [60] * 64, n), method=m, max_num_seqs=32)[1] for m in (None, "suffix")]
        for n in (1, 32)
    )
    assert alone[1].throughput > 1.15 * alone[0].throughput
    assert crowd[1].throughput > 0.97 * crowd[0].throughput
    assert crowd[1].mean_acceptance_length < 1.1 < alone[1].mean_acceptance_length
    fixed = simulate(closed([10] * 64, [60] * 64, 32), method="suffix", num_speculative_tokens=6, max_num_seqs=32)[1]
    assert fixed.throughput < 0.8 * crowd[0].throughput


def test_long_prompts_do_not_stop_those_who_decode() -> None:
    asks = [*arriving([16], [200], 1.0).asks, *arriving([4000], [2], 0.9, seed=1).asks]
    record, _ = simulate(Workload(sorted(asks, key=lambda ask: ask.arrival or 0.0)), max_model_len=4096)
    slow = max(record.answers, key=lambda answer: answer.tokens)
    assert (slow.last - slow.first) / 199 < 2 * 0.0112 + 4.1 / 199


def test_a_shared_prefix_is_computed_once() -> None:
    asks = closed([160] * 8, [4] * 8, 1, shared=128)
    _, cached = simulate(asks)
    _, computed = simulate(asks, enable_prefix_caching=False)
    assert cached.cached_tokens == 7 * 128
    assert computed.cached_tokens == 0
    assert cached.ttft["p50"] < 0.4 * computed.ttft["p50"]


def test_a_cache_that_is_short_preempts_and_still_answers_everyone() -> None:
    record, result = simulate(closed([100] * 6, [120] * 6, 6), kv_cache_tokens=640)
    assert result.preemptions == sum(answer.preemptions for answer in record.answers) > 0
    assert result.output_tokens == 720
    with pytest.raises(ConfigError, match="no room"):
        simulate(closed([2000], [10], 1), kv_cache_tokens=640)


def test_requests_that_arrive_wait_longer_the_more_there_are() -> None:
    prompts, outputs = lengths(100, 0.5, 80, 0), lengths(40, 0.5, 80, 1)
    waits = [simulate(arriving(prompts, outputs, rate), max_num_seqs=8)[1] for rate in (0.2, 4.0, 40.0)]
    assert [wait.ttft["p50"] for wait in waits] == sorted(wait.ttft["p50"] for wait in waits)
    assert waits[0].busy < 0.5 < 0.95 < waits[2].busy
    assert sum(prompts) / 80 == pytest.approx(100, rel=0.2)


def test_recorded_drafts_are_taken_where_they_were_made() -> None:
    tree = Opportunity(draft_of([0.9, 0.8, 0.1, 0.2], [-1, 0, -1, 2], "suffix"), [0, 1])
    recorded = Recorded([([1, 4], [tree, NOTHING])])
    assert recorded.at(0, 7, 1) is tree
    left = recorded.at(3, 7, 2)
    assert (list(left.draft.scores or ()), left.path) == ([0.8], [0])
    assert recorded.at(3, 7, 3) is NOTHING
    asks = closed([8], [4], 1)
    cheap = MeasuredCosts(Measured(CostCurve((1, 64), (0.01, 0.0101)), ChunkCosts(0.01, 0.001)))
    record = Simulation(Settings(method="suffix"), cheap, asks, {"suffix": recorded}).run()
    assert (record.answers[0].steps, record.answers[0].accepted) == (1, 2)


def test_a_cut_draft_loses_what_lay_behind() -> None:
    chain = Opportunity(draft_of([0.9, 0.9, 0.9], None, "suffix"), [0, 1, 2])
    recorded = Recorded([([1, 4], [chain, NOTHING])])
    asks = closed([8], [5], 1)
    simulation = Simulation(Settings(method="suffix", num_speculative_tokens=2), MACHINE, asks, {"suffix": recorded})
    answer = simulation.run().answers[0]
    assert (answer.steps, answer.drafted, answer.accepted) == (2, 2, 2)


def test_a_roofline_machine_has_limits() -> None:
    shape = ModelShape(8e9, num_layers=32, num_heads=32, num_kv_heads=8)
    one = RooflineCosts(shape, gpu_of("h100").machine(), {"eagle3": ModelShape(0.5e9)})
    plain = one.forward(StepShape(1, 0, 1, 256))
    assert plain == pytest.approx(one.curve.behind(256, 1)(1), rel=0.01)
    assert one.forward(StepShape(1, 2000, 1, 256)) > 3 * plain
    assert 0 < one.level("eagle3", 1) < 0.2 * plain < plain
    assert one.level("suffix", 1) == 0.0
    assert one.kv_tokens == pytest.approx((80e9 * 0.9 - 17e9) / 131072, rel=0.01)
    with pytest.raises(ConfigError, match="more GPUs"):
        RooflineCosts(ModelShape(70e9), gpu_of("h100").machine())


def test_what_has_no_acceptance_is_refused() -> None:
    with pytest.raises(ConfigError, match="eagle"):
        Simulation(Settings(method="eagle"), MACHINE, closed([1], [1], 1), RATES)
    with pytest.raises(ConfigError, match="rates of x"):
        Rates("x", [1.5])
