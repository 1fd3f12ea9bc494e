"""The closed forms against replays of what they describe, and against each other."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.theory import bounds, expected, experts, roofline, speedup

RATES = st.lists(st.floats(0.0, 1.0), min_size=0, max_size=8)
ALPHA = st.floats(0.0, 1.0)


def replay(rates: list[float], draws: int = 20_000) -> float:
    """Mean tokens of steps in which position i is accepted with rates[i] until one is not."""
    chance = random.Random(0)
    return (
        1
        + sum(sum(1 for _ in itertools.takewhile(lambda rate: chance.random() < rate, rates)) for _ in range(draws))
        / draws
    )


def test_a_chain_commits_what_a_replay_commits() -> None:
    rates = [0.9, 0.6, 0.75, 0.2]
    assert expected.chain_tokens(rates) == pytest.approx(replay(rates), abs=0.03)


@given(ALPHA, st.integers(0, 12))
def test_constant_acceptance_is_the_papers_formula(alpha: float, k: int) -> None:
    tokens = expected.constant_tokens(alpha, k)
    assert tokens == pytest.approx(expected.chain_tokens(expected.rates_of(alpha, k)))
    assert tokens * (1 - alpha) == pytest.approx(1 - alpha ** (k + 1), abs=1e-12)
    assert 1.0 <= tokens <= min(k + 1, bounds.most_tokens(alpha)) + 1e-9


@given(RATES)
def test_a_chain_is_a_tree_without_branches(rates: list[float]) -> None:
    parents = list(range(-1, len(rates) - 1))
    assert expected.tree_tokens(parents, rates) == pytest.approx(expected.chain_tokens(rates))
    assert expected.reached(expected.conditional(expected.reached(rates))) == pytest.approx(expected.reached(rates))


def test_a_trees_tokens_are_those_of_walks_through_it() -> None:
    parents, rates = [-1, -1, 0, 0, 1, 2], [0.5, 0.3, 0.6, 0.3, 0.8, 0.9]
    chance, total, draws = random.Random(1), 0, 20_000
    for _ in range(draws):
        at = -1
        while True:
            total += 1
            pick, below = chance.random(), [node for node, parent in enumerate(parents) if parent == at]
            ends = list(itertools.accumulate(rates[node] for node in below))
            chosen = [node for node, end in zip(below, ends, strict=True) if pick < end][:1]
            if not chosen:
                break
            at = chosen[0]
    assert expected.tree_tokens(parents, rates) == pytest.approx(total / draws, abs=0.03)


def test_the_best_nodes_are_those_of_every_subtree() -> None:
    parents, rates = [-1, -1, 0, 0, 1, 2], [0.5, 0.3, 0.6, 0.3, 0.8, 0.9]
    chances = expected.path_probabilities(parents, rates)
    for size in range(len(parents) + 1):
        subtrees = [
            kept
            for kept in itertools.combinations(range(len(parents)), size)
            if all(parents[node] in (-1, *kept) for node in kept)
        ]
        best = expected.best_nodes(parents, rates, size)
        assert tuple(best) in subtrees
        assert sum(chances[node] for node in best) == pytest.approx(
            max(sum(chances[node] for node in kept) for kept in subtrees)
        )


@pytest.mark.parametrize(("parents", "rates"), [([0], [0.5]), ([-1], [1.2]), ([-1, -1], [0.7, 0.7]), ([-1, 0], [0.5])])
def test_what_is_no_tree_is_refused(parents: list[int], rates: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"parents|rates"):
        expected.tree_tokens(parents, rates)


@given(ALPHA, st.floats(0.0, 1.5), st.integers(1, 10), st.floats(0.0, 0.5))
def test_break_even_is_where_speculation_neither_pays_nor_costs(
    alpha: float, draft_cost: float, k: int, slope: float
) -> None:
    def verify(rows: int) -> float:
        return 1.0 + slope * (rows - 1)

    point = speedup.break_even(k, draft_cost, verify)
    if point is None:
        assert speedup.speed_up([1.0], k, draft_cost, verify) < 1.0
        return
    assert speedup.speed_up([point], k, draft_cost, verify) == pytest.approx(1.0)
    pays = speedup.speed_up([alpha], k, draft_cost, verify) > 1.0 + 1e-9
    assert not pays or alpha > point


@given(RATES, st.floats(0.0, 1.0), st.floats(0.0, 0.3))
def test_the_best_k_is_never_beaten_nor_slower_than_plain(rates: list[float], cost: float, slope: float) -> None:
    best = speedup.best_k(rates, cost, lambda rows: 1 + slope * rows, batch=4, max_tokens=8)
    each = [speedup.speed_up(rates, k, cost, lambda rows: 1 + slope * rows, batch=4) for k in range(9)]
    assert best.speed_up == max(each) >= 1.0


def test_known_figures_of_the_paper() -> None:
    """Leviathan et al. 2023, table 1: alpha, K, and operations and speed for c near 0."""
    for alpha, k, speed in [
        (0.6, 2, 1.96),
        (0.7, 3, 2.53),
        (0.8, 2, 2.44),
        (0.8, 5, 3.69),
        (0.9, 2, 2.71),
        (0.9, 10, 6.86),
    ]:
        assert speedup.speed_up([alpha], k, 0.0) == pytest.approx(speed, abs=0.005)
    assert speedup.best_k([0.75], 0.05).speed_up >= speedup.least_gain(0.75, 0.05)


LAW = st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4).map(lambda law: np.array(law) / sum(law))


@given(LAW, LAW, st.integers(1, 5))
def test_no_rule_accepts_more_than_the_bounds(p: np.ndarray, q: np.ndarray, k: int) -> None:
    assert bounds.overlap(p, q) == pytest.approx(1 - np.abs(p - q).sum() / 2)
    assert bounds.candidates(p, q, 1) == pytest.approx(bounds.overlap(p, q))
    own_draw = float((p * (1 - (1 - q) ** k)).sum())
    assert own_draw <= bounds.candidates(p, q, k) + 1e-12 <= 1 + 1e-9
    assert own_draw <= bounds.top_candidates(p, k) + 1e-12
    pairs = [np.outer(law, law).ravel() for law in (p, q)]
    token_wise = 1 + bounds.overlap(p, q) + bounds.overlap(p, q) ** 2
    assert token_wise <= bounds.block_tokens([p, pairs[0]], [q, pairs[1]]) + 1e-9


def test_a_law_that_does_not_sum_to_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="draft"):
        bounds.overlap([0.5, 0.5], [0.5, 0.6])
    with pytest.raises(ConfigError, match="one vocabulary"):
        bounds.overlap([0.5, 0.5], [0.5, 0.25, 0.25])


def test_experts_touched_is_what_random_routers_touch() -> None:
    chance, draws = random.Random(2), 4000
    for rows in (1, 3, 8):
        seen = sum(len({e for _ in range(rows) for e in chance.sample(range(16), 2)}) for _ in range(draws)) / draws
        assert experts.experts_touched(16, 2, rows) == pytest.approx(seen, rel=0.02)
    assert experts.experts_touched(16, 2, experts.rows_touching(16, 2, 0.5)) == pytest.approx(8.0)


def test_speculation_on_a_mixture_gains_less_than_on_a_dense_model() -> None:
    mixture = experts.ExpertWeights(shared_bytes=1e9, expert_bytes=1e9, num_experts=64, experts_per_token=2)
    assert mixture.step_bytes(1) == pytest.approx(3e9)
    curve = mixture.curve(bandwidth=1e12)
    gain = [speedup.speed_up([0.7], k, 0.02, curve) for k in (0, 3)]
    assert gain[1] < gain[0] == 1.0 < speedup.speed_up([0.7], 3, 0.02)
    tokens = expected.constant_tokens(0.7, 3)
    assert speedup.utility(tokens, curve(4) / curve(1)) < 1.0 < speedup.utility(tokens, 1.0)


SHAPE = roofline.ModelShape(8e9, num_layers=32, num_heads=32, num_kv_heads=8)
MACHINE = roofline.Machine(bandwidth=3.35e12, flops=9.9e14, memory=80e9, price=3.0)


def test_rows_are_free_until_arithmetic_takes_as_long_as_reading() -> None:
    rows = roofline.free_rows(SHAPE, MACHINE)
    below, at, above = (roofline.step_seconds(SHAPE, MACHINE, int(rows * f)) for f in (0.5, 1.0, 2.0))
    assert below == pytest.approx(at, rel=0.01)
    assert above == pytest.approx(2 * at, rel=0.02)
    assert SHAPE.kv_bytes_per_token == 131072
    assert roofline.free_rows(SHAPE, MACHINE, context=100_000) == float("inf")


def test_a_mixtures_roofline_reads_the_experts_that_rows_touch() -> None:
    weights = experts.ExpertWeights(2e9, 1e9, num_experts=64, experts_per_token=4)
    shape = roofline.ModelShape(33e9, experts=weights)
    assert shape.step_bytes(1) == pytest.approx(6e9)
    assert roofline.step_seconds(shape, MACHINE, 8) > 2 * roofline.step_seconds(shape, MACHINE, 1)


def test_more_gpus_hold_more_and_reach_less_than_their_sum() -> None:
    two = MACHINE.together(2, 0.8)
    assert roofline.step_seconds(SHAPE, two, 1) == pytest.approx(roofline.step_seconds(SHAPE, MACHINE, 1) / 1.6)
    assert (two.price, two.memory) == (6.0, 160e9)
    assert roofline.batch_limit(SHAPE, two, 2048) > 2 * roofline.batch_limit(SHAPE, MACHINE, 2048)
