"""Drafters made of drafters: members hear everything, a failing one is left out, needs and rows are shared out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from drafters.conformance import CONTEXT, VOCAB_SIZE
from drafters.fakes import FakeSequence, NoNoise
from outrider.core.draft import EMPTY, Draft, Probes
from outrider.drafters.base import Committed, Drafter, DraftNoise, DraftSequence, Needs
from outrider.drafters.members import Member
from outrider.drafters.merge import MergeDrafter
from outrider.drafters.registry import DrafterContext
from outrider.drafters.route import RouteDrafter
from outrider.drafters.sharing import union, with_probes
from outrider.errors import ContractError

NOTHING = Needs()
CLASSES = {
    "merge": lambda members, context: MergeDrafter("merge", members, context),
    "route": lambda members, context: RouteDrafter("route", members, context, {}, False),
}
classes = pytest.mark.parametrize("kind", CLASSES)


class Scripted(Drafter):
    """Proposes one draft and writes down what it hears."""

    def __init__(self, draft: Draft = EMPTY, seconds: float = 0.0, needs: Needs = NOTHING, fails: str = "") -> None:
        self.draft, self.needs, self.fails = draft, needs, fails
        self.method, self._seconds = draft.source, seconds
        self.heard: list[Any] = []

    def _hear(self, what: str, *facts: Any) -> None:
        self.heard.append((what, *facts))
        if what == self.fails:
            raise ValueError(f"{what} fails")

    def seconds(self, num_sequences: int, num_tokens: int) -> float:
        return self._seconds * num_tokens

    def begin(self, seq: DraftSequence, hidden: Any = None) -> None:
        self._hear("begin", hidden)

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        self._hear("propose", list(budgets))
        return [self.draft.keep(range(min(budget, len(self.draft)))) for budget in budgets]

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        self._hear("observe", committed)

    def truncate(self, seq: DraftSequence, length: int) -> None:
        self._hear("truncate", length)

    def release(self, seq: DraftSequence) -> None:
        self._hear("release")

    def close(self) -> None:
        self._hear("close")


def member(key: int, drafter: Drafter, draws: bool = False) -> Member:
    return Member(key, drafter.method, drafter, 4, draws)


def composite(kind: str, *drafters: Drafter, strict: bool = False) -> Any:
    context = DrafterContext(VOCAB_SIZE, 100, frozenset(), strict=strict)
    return CLASSES[kind]([member(key, drafter) for key, drafter in enumerate(drafters)], context)


def chain(*tokens: int, source: str = "x", score: float = 0.5) -> Draft:
    return Draft(tokens, scores=[score] * len(tokens), source=source)


@classes
def test_every_member_hears_everything(kind: str) -> None:
    members = [Scripted(chain(1, 2, source="a")), Scripted(chain(3, source="b"))]
    drafter, seq = composite(kind, *members), FakeSequence([1, 2])
    drafter.begin(seq)
    drafter.propose([seq], [4], NoNoise())
    drafter.observe(seq, Committed([5]))
    drafter.truncate(seq, 2)
    drafter.release(seq)
    drafter.close()
    for each in members:
        assert [what for what, *_ in each.heard] == ["begin", "propose", "observe", "truncate", "release", "close"]


@classes
@pytest.mark.parametrize("hook", ["begin", "propose", "observe", "truncate"])
def test_a_failing_member_is_left_out_and_the_others_go_on(
    kind: str, hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = Scripted(chain(1, source="good")), Scripted(chain(2, source="bad", score=0.9), fails=hook)
    drafter, seq = composite(kind, good, bad), FakeSequence([1, 2])
    drafter.begin(seq)
    drafter.propose([seq], [4], NoNoise())
    drafter.observe(seq, Committed([5]))
    drafter.truncate(seq, 2)
    (draft,) = drafter.propose([seq], [4], NoNoise())
    assert list(draft.tokens) == [1]
    assert "without bad" in caplog.text
    assert bad.heard[-1] == ("release",)
    heard = len(bad.heard)
    drafter.observe(seq, Committed([5]))
    assert len(bad.heard) == heard
    drafter.release(seq)
    assert len(bad.heard) == heard
    assert good.heard[-1] == ("release",)
    assert not drafter._following


@classes
def test_a_failing_member_is_an_error_when_strict_or_the_last(kind: str) -> None:
    good, bad = Scripted(chain(1, source="good")), Scripted(chain(2, source="bad"), fails="propose")
    for drafter in (composite(kind, good, bad, strict=True), composite(kind, bad)):
        seq = FakeSequence([1, 2])
        drafter.begin(seq)
        with pytest.raises(ValueError, match="propose fails"):
            drafter.propose([seq], [4], NoNoise())


@classes
def test_a_draft_that_breaks_the_contract_is_the_members_fault(kind: str) -> None:
    bad = Scripted(Draft([VOCAB_SIZE], scores=[0.9], source="bad"))
    drafter, seq = composite(kind, Scripted(chain(1, source="good")), bad), FakeSequence([1, 2])
    drafter.begin(seq)
    (draft,) = drafter.propose([seq], [4], NoNoise())
    assert list(draft.tokens) == [1]


@classes
def test_only_the_sequence_at_fault_loses_the_member(kind: str) -> None:
    class Picky(Scripted):
        def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
            if any(seq.seq_id == 1 for seq in sequences):
                raise ValueError("not this one")
            return super().propose(sequences, budgets, noise)

    drafter = composite(kind, Scripted(chain(1, source="good")), Picky(chain(2, source="bad", score=0.9)))
    seqs = [FakeSequence([1, 2], seq_id=number) for number in range(3)]
    for seq in seqs:
        drafter.begin(seq)
    drafted = drafter.propose(seqs, [4] * 3, NoNoise())
    assert [2 in draft.tokens for draft in drafted] == [True, False, True]


@classes
def test_every_member_meets_a_sequence_at_its_beginning(kind: str) -> None:
    free, timed = Scripted(chain(1, source="free")), Scripted(chain(2, source="timed"), seconds=0.1)
    tapped = Scripted(chain(3, source="tapped"), seconds=0.1, needs=Needs(hidden_layers=(1,)))
    drafter, seq = composite(kind, free, timed, tapped), FakeSequence([1, 2])
    drafter.begin(seq, torch.zeros(2, 8))
    drafter.observe(seq, Committed([5]))
    assert [[what for what, *_ in each.heard] for each in (free, timed, tapped)] == [["begin", "observe"]] * 3


@classes
def test_layers_rows_and_probes_are_shared_out(kind: str) -> None:
    first = Scripted(chain(1, source="a"), needs=Needs(hidden_layers=(5, 2), row_topk=2))
    second = Scripted(chain(2, source="b"), needs=Needs(hidden_layers=(2, 9), row_argmax=True))
    third = Scripted(chain(3, source="c"))
    drafter, seq = composite(kind, first, second, third), FakeSequence([1, 2])
    assert drafter.needs == Needs(hidden_layers=(2, 5, 9), row_topk=2, row_argmax=True)
    hidden = torch.cat([torch.full((3, 2), float(layer)) for layer in (2, 5, 9)], dim=1)
    drafter.begin(seq, hidden)
    draft = with_probes(
        Draft([1, 2], source=kind), {0: Draft(probes=Probes([7], [-1])), 2: Draft(probes=Probes([8, 9], [-1, 0]))}
    )
    assert draft.probes == Probes([7, 8, 9], [-1, -1, 1])
    top = torch.arange(12).reshape(6, 2)
    drafter.observe(seq, Committed([4], 0, draft, hidden, top))
    seen = [each.heard[-1][1] for each in (first, second, third)]
    assert [None if c.hidden is None else c.hidden[0].tolist() for c in seen] == [[5, 5, 2, 2], [2, 2, 9, 9], None]
    assert seen[0].row_top.tolist() == top[[0, 1, 2, 3]].tolist()
    assert seen[1].row_top.tolist() == top[[0, 1, 2], :1].tolist()
    assert seen[2].row_top is None
    assert [c.draft.probes for c in seen] == [Probes([7], [-1]), None, Probes([8, 9], [-1, 0])]
    assert first.heard[0][1][0].tolist() == [5, 5, 2, 2]


def test_needs_of_members_without_any() -> None:
    assert union([Needs(), Needs(can_truncate=False)]) == Needs(can_truncate=False)


@classes
def test_a_sequence_that_was_never_begun_is_an_error(kind: str) -> None:
    drafter = composite(kind, Scripted(chain(1, source="a")))
    with pytest.raises(ContractError, match="never given begin"):
        drafter.propose([FakeSequence([1])], [3], NoNoise())
    drafter.release(FakeSequence([1]))
    assert CONTEXT.estimates is None
