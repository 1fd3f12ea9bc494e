"""Joining drafts: what the trie of delta drafts keeps, and that samples are left as they were drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.draft import DELTA, Draft, Iid, WithoutReplacement
from outrider.drafters.estimates import everyone_in, label_of, within
from outrider.drafters.union import join, merge

quick = settings(max_examples=150, deadline=None)


@st.composite
def drafts(draw: Any, source: str = "a") -> Draft:
    """A tree without equal siblings, over few tokens so that several drafts meet."""
    size = draw(st.integers(0, 7))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    tokens: list[int] = []
    for node in range(size):
        taken = {tokens[n] for n in range(node) if parents[n] == parents[node]}
        tokens.append(draw(st.sampled_from([t for t in range(8) if t not in taken])))
    scores = draw(st.lists(st.floats(0.0, 1.0), min_size=size, max_size=size))
    return Draft(tokens, parents, scores=scores, source=source)


def paths(draft: Draft) -> dict[tuple[int, ...], int]:
    """Node by token path."""
    return {tuple(draft.tokens[n] for n in draft.path(node)): node for node in range(len(draft))}


def uncalibrated(source: str, depth: int, score: float) -> float:
    return score


@quick
@given(left=drafts(), right=drafts(), budget=st.integers(1, 20))
def test_the_union_has_every_path_once_within_the_budget(left: Draft, right: Draft, budget: int) -> None:
    draft = merge([("a", left), ("b", right)], budget, uncalibrated, "merge")
    draft.check(8, budget)
    known = paths(draft)
    assert len(known) == len(draft)
    union = {**paths(left), **paths(right)}
    assert set(known) <= set(union)
    assert len(draft) == min(budget, len(union))
    for path, node in known.items():
        behind = [name for name, part in (("a", left), ("b", right)) if path in paths(part)]
        assert draft.source_of(node) == "+".join(behind)
    for siblings in draft.children():
        assert sum(draft.scores[node] for node in siblings) <= 1.0 + 1e-9


@quick
@given(left=drafts(), right=drafts(), budget=st.integers(1, 8))
def test_the_kept_nodes_are_the_likeliest(left: Draft, right: Draft, budget: int) -> None:
    def chances(draft: Draft) -> list[float]:
        out: list[float] = []
        for node in range(len(draft)):
            above = 1.0 if draft.parent(node) < 0 else out[draft.parent(node)]
            out.append(above * draft.scores[node])
        return out

    whole = merge([("a", left), ("b", right)], 64, uncalibrated, "merge")
    cut = merge([("a", left), ("b", right)], budget, uncalibrated, "merge")
    best = sum(sorted(chances(whole), reverse=True)[:budget])
    assert sum(chances(cut)) == pytest.approx(best)


@quick
@given(draft=drafts(), budget=st.integers(1, 8))
def test_a_drafter_merged_with_itself_is_itself(draft: Draft, budget: int) -> None:
    once = merge([("a", draft)], budget, uncalibrated, "merge")
    twice = merge([("a", draft), ("a", draft)], budget, uncalibrated, "merge")
    assert twice == once
    if budget >= len(draft):
        assert paths(twice) == paths(draft)


def test_calibration_decides_under_the_joint_name() -> None:
    left, right = (Draft([token], scores=[0.5], source="x") for token in (1, 2))
    agreed = Draft([3], scores=[0.1], source="x")
    known = {"a+b": 0.9}
    parts = [("a", left), ("b", right), ("a", agreed), ("b", agreed)]
    draft = merge(parts, 1, lambda source, depth, score: known.get(source, 0.2), "merge")
    assert (list(draft.tokens), draft.sources) == ([3], ["a+b"])


def test_names_of_nested_drafters() -> None:
    draft = Draft([1], scores=[0.5], source="outer", sources=[within("merge", "a+b")])
    assert label_of(draft, 0) == "outer/merge/a+outer/merge/b"
    assert everyone_in(label_of(draft, 0)) == ("outer/merge/a", "outer/merge", "outer", "outer/merge/b")


def test_samples_stand_side_by_side_with_their_laws() -> None:
    q, r = (torch.tensor(law, dtype=torch.float64) for law in ([0.5, 0.5, 0.0], [0.2, 0.3, 0.5]))
    fixed = Draft([1, 2], [-1, -1], scores=[0.6, 0.2], source="a")
    first = Draft([1, 0], None, laws=[Iid(q), Iid(q)], scores=[0.5, 0.5], source="b")
    second = Draft([2, 1], [-1, -1], laws=[WithoutReplacement(r), WithoutReplacement(r)], source="c")
    draft = join([("a", fixed), ("b", first), ("c", second)], "merge")
    draft.check(3, 6)
    assert list(draft.tokens) == [1, 2, 1, 0, 2, 1]
    assert [draft.parent(node) for node in range(6)] == [-1, -1, -1, 2, -1, -1]
    assert draft.sources == ["a", "a", "b", "b", "c", "c"]
    assert [draft.law(node) for node in range(4)] == [DELTA, DELTA, *first.laws]
    laws = [draft.law(node) for node in (4, 5)]
    assert all(isinstance(law, Iid) for law in laws)
    torch.testing.assert_close(laws[0].q, r)  # type: ignore[union-attr]
    torch.testing.assert_close(laws[1].q, torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64))  # type: ignore[union-attr]
