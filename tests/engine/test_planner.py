"""The planner against brute force, and what it does when drafting does not pay."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.draft import EMPTY, Draft, Iid
from outrider.drafters.estimates import MARGIN, path_chances
from outrider.engine import crowd as crowds
from outrider.engine import planner as module
from outrider.engine.calibration import Calibration
from outrider.engine.crowd import CROWD
from outrider.engine.planner import Planner
from outrider.target.costs import CostCurve

FLAT = CostCurve((1, 64), (0.010, 0.0101))
STEEP = CostCurve((1, 2, 64), (0.010, 0.020, 0.640))
USUAL = CostCurve((1, 4, 8, 16, 64), (0.010, 0.011, 0.014, 0.024, 0.090))


def seq(number: int = 0, fixed: int | None = None) -> Any:
    params = SimpleNamespace(max_tokens=64)
    words = {"planned": "", "method": "draft_model", "begun": True}
    return SimpleNamespace(seq_id=number, fixed_tokens=fixed, token_ids=[0] * 8, output_ids=[], params=params, **words)


def drafter(seconds: float) -> Any:
    return SimpleNamespace(
        method="draft_model",
        seconds=lambda num_sequences, num_tokens: seconds * num_tokens,
        nodes=lambda levels: levels,
        max_levels=None,
        weighs_cost=False,
        more_seconds=lambda num_sequences: seconds,
    )


def closed_subsets(draft: Draft) -> Seq[frozenset[int]]:
    """Every set of nodes that holds the parent of each of its nodes."""
    nodes = range(len(draft))
    picks = (frozenset(p) for n in range(len(draft) + 1) for p in itertools.combinations(nodes, n))
    return [p for p in picks if all(draft.parent(node) in p or draft.parent(node) < 0 for node in p)]


TREES = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.tuples(*(st.integers(-1, node - 1) for node in range(n))),
        st.lists(st.floats(0.02, 0.98), min_size=n, max_size=n),
    )
)


@settings(deadline=None, max_examples=150)
@given(
    trees=st.lists(TREES, min_size=1, max_size=2),
    curve=st.sampled_from([FLAT, STEEP, USUAL]),
    speed_up=st.floats(1.0, 4.0),
)
def test_the_kept_nodes_are_worth_most_at_the_going_rate(trees: Any, curve: CostCurve, speed_up: float) -> None:
    drafts = [Draft(tokens=[7] * len(p), parents=p, scores=s, source="x") for p, s in trees]
    seqs = [seq(number) for number in range(len(drafts))]
    base = len(drafts)
    planner = at_speed(Planner(curve), speed_up)
    price = planner.going_rate(base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SURE", 1.0)
        kept = planner.select(seqs, drafts)
    chances = [path_chances(planner, one.seq_id, draft) for one, draft in zip(seqs, drafts, strict=True)]

    def gain(count: int, expected: float) -> float:
        return len(drafts) + expected - price * (curve(base + count) + module._OVERHEAD)

    best = max(
        gain(sum(map(len, picks)), sum(chances[i][node] for i, pick in enumerate(picks) for node in pick))
        for picks in itertools.product(*(closed_subsets(draft) for draft in drafts))
    )
    expected = sum(sum(path_chances(planner, one.seq_id, draft)) for one, draft in zip(seqs, kept, strict=True))
    got = gain(sum(map(len, kept)), expected)
    assert got == pytest.approx(best) or (not any(map(len, kept)) and best <= gain(0, 0.0) + MARGIN * base + 1e-9)


def at_speed(planner: Planner, speed_up: float) -> Planner:
    """``planner`` once it has seen steps that were so much faster than plain decoding."""
    for _ in range(200):
        planner.observe_step(1, 1, planner.curve(1), 6, 6 * planner.step_seconds(1) / speed_up)
    assert planner.going_rate(1) == pytest.approx(speed_up / planner.step_seconds(1), rel=0.01)
    return planner


def test_at_a_higher_rate_less_is_kept_and_asked_for() -> None:
    draft = Draft(tokens=[1, 2, 3, 4], scores=[0.9, 0.7, 0.5, 0.4], source="x")
    kept, asked, floors = [], [], []
    for speed_up in (1.0, 1.6, 3.0):
        planner = at_speed(Planner(USUAL), speed_up)
        kept.append(len(planner.select([seq()], [draft])[0]))
        asked.append(planner.budget(seq(), drafter(0.004), 4, 1))
        floors.append(planner.floor(drafter(0.002), 1))
    assert kept[0] > kept[-1]
    assert asked[0] > asked[-1] == 0
    assert floors == sorted(floors)


def test_long_runs_are_faster_than_with_the_best_rate_of_every_step() -> None:
    curve = CostCurve((1, 2, 64), (0.010, 0.012, 0.136))
    steps = [Draft(tokens=[1] * len(p), scores=p, source="x") for p in ([0.95] * 10, [0.3, 0.2], [0.6] * 4)]
    planner = Planner(curve)

    def outcome(draft: Draft) -> tuple[float, float]:
        return 1.0 + sum(path_chances(planner, 0, draft)), planner.step_seconds(1 + len(draft))

    def myopic(draft: Draft) -> Draft:
        def rate(length: int) -> float:
            tokens, seconds = outcome(draft.keep(list(range(length))))
            return tokens / seconds

        return draft.keep(list(range(max(range(len(draft) + 1), key=rate))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SURE", 1.0)
        for _ in range(100):
            for draft in steps:
                tokens, seconds = outcome(planner.select([seq()], [draft])[0])
                planner.observe_step(1, 1, curve(1), tokens, seconds)
        ours = [outcome(planner.select([seq()], [draft])[0]) for draft in steps]
    theirs = [outcome(myopic(draft)) for draft in steps]
    rates = [sum(tokens for tokens, _ in each) / sum(seconds for _, seconds in each) for each in (ours, theirs)]
    assert rates[0] > 1.005 * rates[1]


def test_the_going_rate_follows_the_traffic_and_shrugs_off_an_interruption() -> None:
    planner = at_speed(Planner(USUAL), 2.0)
    planner.observe_step(1, 1, USUAL(1), 2, 60.0)
    assert planner.going_rate(1) * planner.step_seconds(1) > 1.5
    for _ in range(400):
        planner.observe_step(1, 1, USUAL(1), 1, 2.0 * planner.step_seconds(1))
    assert planner.going_rate(1) == pytest.approx(1.0 / planner.step_seconds(1))


def test_nothing_is_kept_where_rows_cost_as_much_as_steps() -> None:
    draft = Draft(tokens=[1, 2], scores=[0.9, 0.9], source="x")
    one = seq()
    assert Planner(STEEP).select([one], [draft]) == [EMPTY]
    assert "nothing drafted" in one.planned


def test_a_row_that_just_pays_is_left_out() -> None:
    curve = CostCurve((1, 2), (0.0100, 0.0150))
    barely, surely = (Draft(tokens=[1], scores=[p], source="x") for p in (0.5, 0.9))
    assert Planner(curve).select([seq()], [barely]) == [EMPTY]
    assert Planner(curve).select([seq()], [surely]) == [surely]


def test_a_fixed_k_and_a_draft_with_laws_are_left_alone() -> None:
    lawful = Draft(tokens=[1], laws=[Iid(q=None)], scores=[0.01], source="x")  # type: ignore[arg-type]
    sure = Draft(tokens=[1], scores=[0.01], source="x")
    assert Planner(STEEP).select([seq(), seq(1, fixed=1)], [lawful, sure]) == [lawful, sure]


def test_a_model_drafter_is_asked_for_what_pays_and_now_and_then_when_it_does_not() -> None:
    assert Planner(USUAL).budget(seq(), drafter(0.001), 4, 1) >= 3
    planner, one = Planner(USUAL), seq()
    asked = [planner.budget(one, drafter(0.02), 4, 1) for _ in range(2 * module._EXPLORE + 1)]
    assert sum(asked) == 2
    assert "costs more time" in one.planned


def test_in_a_crowd_one_sequence_at_a_time_tries_a_model_drafter_that_does_not_pay() -> None:
    planner, seqs = Planner(USUAL), [seq(number) for number in range(8)]
    steps = 4 * 8 * module._EXPLORE + 1
    planner.prepare(seqs)
    asked = [planner.budget(one, drafter(0.02), 4, len(seqs)) for _ in range(steps) for one in seqs]
    assert sum(asked) == 4 * len(seqs)
    planner.prepare([seq()])
    assert planner.budget(seqs[0], drafter(0.0001), 4, 1) > 0  # alone it is asked at once


def test_a_lookup_drafter_rests_in_a_crowd_while_nothing_pays() -> None:
    planner, seqs = Planner(USUAL), [seq(number) for number in range(CROWD)]
    asked = []
    for step in range(4 * crowds._PATIENCE + 1):
        planner.prepare(seqs)
        budgets = [planner.budget(one, drafter(0.0), 8, len(seqs)) for one in seqs]
        asked += [step] * all(budget > 0 for budget in budgets)
        assert len(set(budgets)) == 1
        planner.select(seqs, [EMPTY] * len(seqs))
    assert asked == [0, 1, 2, 4, 8, 16, 32, 48, 64]
    planner.prepare(seqs[: CROWD - 1])
    assert all(planner.budget(one, drafter(0.0), 8, CROWD - 1) == 8 for one in seqs)
    sure = Draft(tokens=[1], scores=[0.97], source="x")
    planner.select(seqs, [sure] * len(seqs))
    planner.prepare(seqs)
    assert all(planner.budget(one, drafter(0.0), 8, len(seqs)) == 8 for one in seqs)


def crowd(planner: Planner, seqs: list[Any], steps: int, tokens: int, ask: float = 0.001) -> list[list[int]]:
    """Steps in which a look-up of ``ask`` seconds brings each sequence that is asked so many tokens; who was asked."""
    out = []
    for _ in range(steps):
        planner.prepare(seqs)
        budgets = [planner.budget(one, drafter(0.0), 8, len(seqs)) for one in seqs]
        asked = [one.seq_id for one, budget in zip(seqs, budgets, strict=True) if budget]
        draft = Draft(tokens=[1] * tokens, scores=[0.97] * tokens, source="x") if tokens else EMPTY
        planner.select(seqs, [draft if budget else EMPTY for budget in budgets])
        drafting = ask * len(asked)
        planner.settle(seqs, tokens * len(asked), tokens * len(asked), drafting, planner.curve(len(seqs)) + drafting)
        out.append(asked)
    return out


def test_where_drafting_does_not_pay_a_crowd_is_asked_as_often_as_finding_out_may_lose() -> None:
    planner, seqs = Planner(FLAT), [seq(number) for number in range(8)]
    asked = crowd(planner, seqs, 8000, tokens=0)
    assert 0 < sum(map(len, asked)) * 0.001 < 0.02 * 8000 * planner.curve(8)
    assert "8 at a time" in seqs[0].planned
    crowd(planner, seqs, 8000, tokens=3)
    assert sum(map(len, crowd(planner, seqs, 10, tokens=3))) == 10 * len(seqs)  # it pays again


def test_where_drafting_does_not_pay_drafters_meet_new_sequences_of_a_crowd_later() -> None:
    planner, seqs = Planner(USUAL), [seq(number) for number in range(8)]
    assert not planner.puts_off(seqs[0], len(seqs))
    while not planner.puts_off(seqs[0], len(seqs)):
        crowd(planner, seqs, 1, tokens=0)
    assert planner.puts_off(seq(50), len(seqs))
    assert not planner.puts_off(seq(51), CROWD - 1)
    assert not planner.puts_off(seq(52, fixed=3), len(seqs))
    for _ in range(10_000):
        crowd(planner, seqs, 1, tokens=0)
        if not planner.puts_off(seq(50), len(seqs)):
            return
    raise AssertionError("it is never tried again")


def test_what_following_prompts_takes_counts_also_for_sequences_that_leave_early() -> None:
    planner = Planner(USUAL)
    for number in range(0, 4000, 8):  # as many tokens as asking takes, but dear prompts
        seqs = [seq(number + at) for at in range(8)]
        for one in seqs:
            if not planner.puts_off(one, len(seqs)):
                planner.crowd.met(one, 0.05)
        crowd(planner, seqs, 4, tokens=1, ask=0.0001)
        for one in seqs:
            planner.release(one)
    assert planner.puts_off(seq(5000), 8)


def test_what_a_row_costs_counts_the_sequences_that_nobody_drafts_for() -> None:
    planner, one = Planner(USUAL), seq()
    draft = Draft(tokens=[1, 2, 3, 4], scores=[0.6, 0.5, 0.5, 0.5], source="x")
    planner.prepare([seq()])
    alone = len(planner.select([one], [draft])[0])
    planner.prepare([seq(number) for number in range(60)])
    planner.beside(1)
    assert len(planner.select([one], [draft])[0]) < alone


def test_the_floor_rises_with_the_cost_of_a_draft_token() -> None:
    planner = Planner(USUAL)
    floors = [planner.floor(drafter(seconds), 1) for seconds in (0.0, 0.001, 0.003, 0.1)]
    assert floors == sorted(floors)
    assert 0.0 < floors[0] < 0.1
    assert Planner(STEEP).floor(drafter(0.0), 1) > floors[0]
    assert floors[-1] == 0.9


def test_estimates_follow_what_the_target_did() -> None:
    calibration = Calibration()
    draft = Draft(tokens=[5, 6], scores=[0.5, 0.5], source="x")
    assert calibration.estimate(0, "x", 1, 0.5) == 0.5
    for _ in range(40):
        calibration.observe(0, draft, [5, 9])
    assert calibration.estimate(0, "x", 1, 0.5) > 0.85
    assert calibration.estimate(0, "x", 2, 0.5) < 0.15
    assert calibration.at_depth(0, "x", 1, 0.5) > 0.85
    assert calibration.estimate(1, "x", 1, 0.5) > 0.85  # another request starts at what all have shown
    calibration.release(0)
    assert all(key[0] != 0 for key in calibration._own)
