"""Whom route and merge ask, with made-up costs; and the bandit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.conformance import VOCAB_SIZE
from drafters.fakes import FakeSequence, NoNoise
from drafters.test_composite import Scripted, chain, member
from outrider.core.draft import Draft, Iid
from outrider.drafters.bandit import Bandit
from outrider.drafters.base import Committed, Drafter
from outrider.drafters.estimates import plain, worth_asking, worth_of
from outrider.drafters.members import _EXPLORE
from outrider.drafters.merge import MergeDrafter
from outrider.drafters.registry import DrafterContext
from outrider.drafters.route import _EPISODE, RouteDrafter
from outrider.drafters.sharing import OwnNoise


class Known:
    """Estimates with a linear cost: a step takes 10 and every row 1; acceptance as set by source; ``rate``: over plain
    decoding's."""

    def __init__(self, at_depth: dict[str, float] | None = None, rate: float = 1.0) -> None:
        self.rate = rate
        self.at = defaultdict(lambda: 0.5, at_depth or {})
        self.learnt: list[tuple[str, list[int], list[int]]] = []

    def chance(self, seq_id: int, source: str, depth: int, score: float) -> float:
        return score

    def at_depth(self, seq_id: int, source: str, depth: int, prior: float) -> float:
        return self.at[source]

    def step_seconds(self, num_rows: int) -> float:
        return 10.0 + num_rows

    def going_rate(self, num_sequences: int) -> float:
        return self.rate * num_sequences / self.step_seconds(num_sequences)

    def floor(self, drafter: Drafter, num_sequences: int) -> float:
        return 0.01

    def learn(self, seq_id: int, draft: Draft, emitted: Sequence[int]) -> None:
        assert draft.sources is not None
        self.learnt.append((f"{draft.source}/{draft.sources[0]}", list(draft.tokens), list(emitted)))


class Fresh(NoNoise):
    shared = False


def route(known: Known, *drafters: Scripted, draws: Sequence[str] = (), **options: Any) -> RouteDrafter:
    context = DrafterContext(VOCAB_SIZE, 100, frozenset(), estimates=known)
    members = [member(key, drafter, drafter.method in draws) for key, drafter in enumerate(drafters)]
    made = RouteDrafter("route", members, context, options.get("tasks", {}), options.get("bandit", False))
    made.confidence_floor = 0.01  # K is left to the planner
    return made


def merged(known: Known, *drafters: Scripted) -> MergeDrafter:
    context = DrafterContext(VOCAB_SIZE, 100, frozenset(), estimates=known)
    made = MergeDrafter("merge", [member(key, drafter) for key, drafter in enumerate(drafters)], context)
    made.confidence_floor = 0.01
    return made


def ask(drafter: Drafter, *seqs: FakeSequence, budget: int = 6, noise: Any = None) -> list[Draft]:
    for seq in seqs:
        if seq.seq_id not in drafter._following:  # type: ignore[attr-defined]
            drafter.begin(seq)
    first = drafter.propose(seqs, [budget] * len(seqs), noise or NoNoise())
    again = drafter.propose(seqs, [budget] * len(seqs), noise or NoNoise())
    assert [list(d.tokens) for d in first] == [list(d.tokens) for d in again]
    return first


def asked(drafter: Scripted) -> int:
    return sum(what == "propose" for what, *_ in drafter.heard)


def test_the_more_confident_free_draft_is_taken_and_the_other_still_learnt_from() -> None:
    known = Known()
    drafter = route(known, Scripted(chain(1, 2, source="a", score=0.4)), Scripted(chain(3, 4, source="b", score=0.8)))
    seq = FakeSequence([9])
    (draft,) = ask(drafter, seq)
    assert (list(draft.tokens), draft.source, draft.sources) == ([3, 4], "route", ["b", "b"])
    drafter.observe(seq, Committed([3, 7], 1, draft))
    assert known.learnt == [("route/a", [1, 2], [3, 7])]


def test_a_timed_member_is_asked_only_where_it_beats_the_free_draft() -> None:
    for score, acceptance, wins in ((0.3, 0.9, True), (0.9, 0.5, False), (0.3, 0.05, False)):
        free, timed = Scripted(chain(1, 2, 3, source="free", score=score)), Scripted(chain(4, 4, source="timed"), 1.0)
        timed.draft = chain(4, 4, source="timed", score=acceptance)
        (draft,) = ask(route(Known({"route/timed": acceptance}), free, timed), FakeSequence([9]))
        assert (asked(timed) > 0) == wins
        assert (draft.sources == ["timed"] * 2) == wins


def test_an_expensive_member_is_left_alone_however_good() -> None:
    timed = Scripted(chain(4, source="timed", score=1.0), 100.0)
    (draft,) = ask(route(Known({"route/timed": 1.0}), Scripted(chain(1, source="free")), timed), FakeSequence([9]))
    assert list(draft.tokens) == [1]
    assert asked(timed) == 0


def test_of_several_timed_members_the_best_rate_wins() -> None:
    good, dear = Scripted(chain(4, source="good"), 1.0), Scripted(chain(5, source="dear"), 30.0)
    drafter = route(Known({"route/good": 0.8, "route/dear": 0.9}), good, dear)
    (draft,) = ask(drafter, FakeSequence([9]))
    assert list(draft.tokens) == [4]
    assert asked(dear) == 0


def test_a_member_that_does_not_pay_is_tried_less_and_less() -> None:
    timed = Scripted(chain(4, source="timed", score=0.1), 100.0)
    drafter, seq = route(Known({"route/timed": 0.1}), timed), FakeSequence([9])
    drafter.begin(seq)
    tried = []
    for step in range(1500):
        before = asked(timed)
        (draft,) = drafter.propose([seq], [6], NoNoise())
        if asked(timed) > before:
            tried.append(step)
            assert len(draft) <= 1
        drafter.observe(seq, Committed([7], 0, draft))
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert tried[0] >= _EXPLORE - 1
    assert gaps == sorted(gaps)
    assert len(tried) < 10
    assert drafter.seconds(1, 1) < 1.0  # it is next to never asked


def test_a_task_has_its_member_and_any_serves_when_that_one_failed() -> None:
    bad = Scripted(chain(4, source="b", score=0.8), fails="observe")
    drafter = route(Known(), Scripted(chain(1, source="a", score=0.9)), bad, tasks={"code": 1})
    code, other = FakeSequence([9], task="code"), FakeSequence([9], seq_id=1, task="chat")
    drafts = ask(drafter, code, other)
    assert [list(draft.tokens) for draft in drafts] == [[4], [1]]
    drafter.observe(code, Committed([7]))
    assert list(ask(drafter, code)[0].tokens) == [1]


def test_under_a_classical_rule_samples_are_used_as_they_come() -> None:
    """The choice may not look at what was drawn: a poor sample is kept although a better draft is at hand."""
    law = [Iid(None)]  # type: ignore[arg-type]
    drawn = Scripted(Draft([4], laws=law, scores=[0.01], source="drawn"), 1.0)
    free = Scripted(chain(1, source="free", score=0.3))
    drafter = route(Known({"route/drawn": 0.9}), free, drawn, draws=["drawn"])
    assert list(ask(drafter, FakeSequence([9]), noise=Fresh())[0].tokens) == [4]
    assert list(ask(drafter, FakeSequence([9], seq_id=1))[0].tokens) == [1]  # shared noise: every draft may be judged
    unasked = route(Known({"route/drawn": 0.01}), free, drawn, draws=["drawn"])
    assert list(ask(unasked, FakeSequence([9]), noise=Fresh())[0].tokens) == [1]


def test_samples_that_cost_nothing_are_not_compared_either() -> None:
    law = [Iid(None)]  # type: ignore[arg-type]
    drawn = Scripted(Draft([4], laws=law, scores=[0.99], source="drawn"))
    drafter = route(Known({"route/drawn": 0.1}), Scripted(chain(1, source="free")), drawn, draws=["drawn"])
    assert list(ask(drafter, FakeSequence([9]), noise=Fresh())[0].tokens) == [1]
    assert asked(drawn) == 0


def test_merge_asks_a_timed_member_by_what_it_adds() -> None:
    for score, seconds, wins in ((0.3, 1.0, True), (0.95, 1.0, True), (0.95, 6.0, False), (0.3, 20.0, False)):
        free = Scripted(chain(1, 2, 3, source="free", score=score))
        timed = Scripted(chain(1, 5, source="timed"), seconds)
        (draft,) = ask(merged(Known({"merge/timed": 0.9}), free, timed), FakeSequence([9]))
        assert (asked(timed) > 0) == wins
        assert (draft.sources or [])[0] == ("free+timed" if wins else "free")


def test_drafting_for_some_must_pay_for_all() -> None:
    """One sequence that gains does not hold up five that are well served."""
    served = chain(1, 2, 3, 4, source="free", score=0.95)

    class Uneven(Scripted):
        def propose(self, sequences: Any, budgets: Any, noise: Any) -> list[Draft]:
            return [Draft() if seq.seq_id == 0 else served for seq in sequences]

    alone, timed = FakeSequence([9]), Scripted(chain(4, 4, source="timed", score=0.9), 4.0)
    known = Known({"route/timed": 0.9})
    ask(route(known, Uneven(served), timed), alone)
    assert asked(timed) > 0
    crowd = [FakeSequence([9], seq_id=number) for number in range(6)]
    timed.heard.clear()
    ask(route(known, Uneven(served), timed), *crowd)
    assert asked(timed) == 0


def test_members_do_not_share_draws() -> None:
    seen = []

    class Counting(Fresh):
        def sample(self, seq: Any, weights: Any, position: int, index: int) -> int:
            seen.append((position, index))
            return 0

    for place in range(3):
        noise = OwnNoise(Counting(), place, 3)
        for position in (5, 6):
            for index in range(4):
                noise.sample(None, None, position, index)  # type: ignore[arg-type]
    assert len(set(seen)) == len(seen) == 24


def test_merge_gives_every_sampling_member_draws_and_a_share_of_its_own() -> None:
    draws: list[tuple[int, int]] = []

    class Counting(Fresh):
        def sample(self, seq: Any, weights: Any, position: int, index: int) -> int:
            draws.append((position, index))
            return 4

    class Sampling(Scripted):
        def propose(self, sequences: Any, budgets: Any, noise: Any) -> list[Draft]:
            self._hear("propose", list(budgets))
            tokens = [noise.sample(sequences[0], None, 7, index) for index in range(budgets[0])]
            return [Draft(tokens, [-1] * len(tokens), laws=[Iid(None)] * len(tokens), source="q")]  # type: ignore[arg-type]

    free, one, two = Scripted(chain(1, 2, source="free")), Sampling(), Sampling()
    context = DrafterContext(VOCAB_SIZE, 100, frozenset())
    for budget, free_nodes, shares in ((7, 2, [3, 2]), (3, 1, [1, 1]), (1, 1, [0, 0])):
        members = [member(0, free), member(1, one, draws=True), member(2, two, draws=True)]
        drafter, seq = MergeDrafter("merge", members, context), FakeSequence([9])
        drafter.begin(seq)
        draws.clear()
        (draft,) = drafter.propose([seq], [budget], Counting())
        assert len(draft) == free_nodes + sum(shares) <= budget
        assert len(set(draws)) == len(draws) == sum(shares)
        assert list(draft.tokens)[free_nodes:] == [4] * sum(shares)  # equal samples stay apart
        for each, share in zip((one, two), shares, strict=True):
            if share:
                assert each.heard[-1] == ("propose", [share])


@settings(max_examples=100, deadline=None)
@given(chances=st.lists(st.floats(0.0, 1.0), max_size=12), count=st.integers(1, 4), rate=st.floats(1.0, 3.0))
def test_worth_is_the_best_prefix_of_the_likeliest(chances: list[float], count: int, rate: float) -> None:
    known, ranked = Known(rate=rate), sorted(chances, reverse=True)
    gains = [
        count * (1.0 + sum(ranked[:size])) - known.going_rate(count) * known.step_seconds(count * (1 + size))
        for size in range(len(chances) + 1)
    ]
    worth = worth_of(known, chances, count)
    assert worth.gain == pytest.approx(max(gains))
    assert worth.gain >= plain(known, count).gain
    assert worth.expected == pytest.approx(1.0 + sum(ranked[: worth.length]))


def test_worth_of_asking_counts_drafting_and_what_is_there_already() -> None:
    known = Known({"x": 0.6})
    free, dear = (worth_asking(known, Scripted(seconds=seconds), "x", 0, 1, range(1, 9)) for seconds in (0.0, 3.0))
    assert free.length > dear.length
    assert free.gain > dear.gain
    beside = worth_asking(known, Scripted(), "x", 0, 1, [2], beside=[0.9])
    assert beside.expected == pytest.approx(1.0 + 0.9 + 0.9 * 0.6)


RATES = (20.0, 30.0, 25.0)


def played(bandit: Bandit, plays: int, rates: Sequence[float], first: int = 0) -> Counter[int]:
    counts: Counter[int] = Counter()
    for number in range(first, first + plays):
        arm = bandit.pick((0, number))
        assert arm == bandit.pick((0, number))
        counts[arm] += 1
        noise = 1.0 + 0.2 * ((number * 7919) % 11 - 5) / 5  # up to a fifth either way
        bandit.reward(arm, 16.0 * noise, 16.0 / rates[arm])
    return counts


def test_the_bandit_settles_on_the_best_rate_and_follows_when_it_changes() -> None:
    bandit = Bandit(3, seed=1)
    counts = played(bandit, 200, RATES)
    assert set(counts) == {0, 1, 2}
    assert counts[1] > 120
    later = played(bandit, 400, (20.0, 5.0, 25.0), first=200)
    assert later[2] > 200


def test_the_bandit_counts_seconds_not_tokens() -> None:
    bandit = Bandit(2, seed=1)
    for number in range(100):
        arm = bandit.pick((number,))
        bandit.reward(arm, *((40.0, 4.0) if arm == 0 else (20.0, 1.0)))
    assert played(bandit, 1, (1.0, 1.0), 100)[1] == 1


def test_the_bandit_is_a_function_of_its_seed() -> None:
    runs = [[played(Bandit(3, seed), 1, RATES, n) for n in range(20)] for seed in (1, 1)]
    assert runs[0] == runs[1]
    picks = [[(b := Bandit(3, seed), played(b, 40, RATES))[1] for _ in range(2)] for seed in (1, 2)]
    assert picks[0][0] == picks[0][1]
    assert picks[0] != picks[1]


def test_a_sequence_stays_with_the_bandits_choice_for_an_episode() -> None:
    drafters = [Scripted(chain(1, source="a", score=0.1)), Scripted(chain(2, source="b", score=0.9))]
    drafter, seq = route(Known(), *drafters, bandit=True), FakeSequence([9])
    drafter.begin(seq)
    first = []
    for _ in range(3 * _EPISODE):
        (draft,) = drafter.propose([seq], [6], NoNoise())
        first.append(draft.tokens[0])
        drafter.observe(seq, Committed([2, 7] if draft.tokens[0] == 2 else [7], 0, draft))
    assert all(len(set(first[start : start + _EPISODE])) == 1 for start in range(0, len(first), _EPISODE))
    assert first[0] == 1
    assert first[_EPISODE] == first[-1] == 2
    drafter.release(seq)
    assert not drafter._episodes
