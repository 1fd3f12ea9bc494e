"""Lookahead decoding: the window against a table of positions, who sees whom, the pool's order and the account."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.conformance import CONTEXT, EOS_ID, one
from drafters.fakes import FakeSequence
from outrider.config import SpeculativeConfig
from outrider.core.draft import Draft
from outrider.drafters import registry
from outrider.drafters.base import Committed
from outrider.drafters.estimates import NoEstimates
from outrider.drafters.jacobi import Window
from outrider.drafters.lookahead import Lookahead
from outrider.drafters.phrases import PhrasePool, merge, until

TEXT = [2, 3, 4, 5, 6, 2, 3, 7]


def lookahead(**options: Any) -> Lookahead:
    drafter = registry.build(SpeculativeConfig(method="lookahead", **options), CONTEXT)
    assert isinstance(drafter, Lookahead)
    return drafter


@given(width=st.integers(1, 6), height=st.integers(1, 5))
def test_a_probe_sees_its_column_and_the_first_level_up_to_it(width: int, height: int) -> None:
    window = Window(width, height, lambda column: column)
    for level in range(1, height):
        window.advance([100 * level + column for column in range(width)], 0, lambda column: -1)
    assert len(window.levels) == height
    probes = window.probes()
    draft = Draft(probes.tokens, probes.parents)
    cells = [(level, column) for level in range(height) for column in range(width)]
    for node, (level, column) in enumerate(cells):
        above = [(0, j) for j in range(column)] + [(i, column) for i in range(level + 1)]
        assert [cells[n] for n in draft.path(node)] == above
        assert len(above) == level + column + 1  # its distance from the root


@settings(max_examples=100, deadline=None)
@given(
    width=st.integers(1, 5),
    height=st.integers(1, 4),
    steps=st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=8),
)
def test_a_window_moves_with_the_root_and_keeps_positions(
    width: int, height: int, steps: list[tuple[int, bool]]
) -> None:
    """Tokens carry the position that they guess: a cell never holds the guess of another one."""
    root = 0
    window = Window(width, height, lambda column: column + 1)
    for moved, computed in steps:
        levels = len(window.levels)
        best = [root + levels + column + 1 for column in range(width)] if computed else None
        if best is not None:
            grams = window.ngrams(best)
            assert len(grams) == (width if levels == height else 0)
            for column, (first, rest) in enumerate(grams):
                for at, token in enumerate([first, *rest]):
                    assert token in (root + column + 1 + at, -1)
        root += moved
        whole = all(token != -1 for row in window.levels for token in row)
        window.advance(best, moved, lambda column: -1)
        assert len(window.levels) == min(height, levels + computed)
        for level, row in enumerate(window.levels):
            assert len(row) == width
            for column, token in enumerate(row):
                assert token in (root + level + column + 1, -1)
                if whole and moved == 1 and computed and levels == height:
                    assert token != -1


@given(
    added=st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), min_size=1, max_size=3)), max_size=20),
    per_key=st.integers(1, 3),
    max_keys=st.integers(1, 3),
)
def test_a_pool_keeps_the_latest_phrases_of_the_latest_keys(
    added: list[tuple[int, list[int]]], per_key: int, max_keys: int
) -> None:
    pool = PhrasePool(per_key, max_keys)
    for key, phrase in added:
        pool.add(key, phrase, "x")
    kept: dict[int, list[tuple[int, ...]]] = {}
    latest = []
    for key, phrase in reversed(added):
        if key not in latest:
            latest.append(key)
        kept.setdefault(key, [])
        if tuple(phrase) not in kept[key]:
            kept[key].append(tuple(phrase))
    for key in range(3):
        found = [phrase for phrase, _ in pool.after(key)]
        assert len(found) <= per_key
        if key in latest[:max_keys]:
            assert found[:1] == kept[key][:1]
            assert found == kept[key][: len(found)]
        else:
            assert found == []
    assert len(pool) <= per_key * max_keys


@given(
    phrases=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=6),
    budget=st.integers(0, 12),
)
def test_branches_are_the_trie_of_the_phrases(phrases: list[list[int]], budget: int) -> None:
    branches = merge([(phrase, str(rank)) for rank, phrase in enumerate(phrases)], budget)
    draft = Draft(branches.tokens, branches.parents)
    paths = [tuple(draft.tokens[n] for n in draft.path(node)) for node in range(len(draft))]
    prefixes = [tuple(phrase[:size]) for phrase in phrases for size in range(1, len(phrase) + 1)]
    assert len(set(paths)) == len(paths) == min(budget, len(set(prefixes)))
    assert set(paths) <= set(prefixes)
    if len(paths) == len(set(prefixes)):
        for path, count, rank in zip(paths, branches.counts, branches.ranks, strict=True):
            through = [i for i, phrase in enumerate(phrases) if tuple(phrase[: len(path)]) == path]
            assert (count, rank) == (len(through), through[0])


def test_the_text_fills_the_pool_when_it_may() -> None:
    for wanted, expected in ((True, [3, 7, 2]), (False, [])):
        drafter, seq = lookahead(lookahead_pool_from_prompt=wanted), FakeSequence([*TEXT, 2])
        drafter.begin(seq)
        draft = one(drafter, seq, 3)
        assert list(draft.tokens) == expected
        assert {draft.source_of(node) for node in range(len(draft))} <= {"lookahead:text"}


def said(token: int) -> int:
    """What the target says after ``token``: it counts from 10 to 17 over and over."""
    return 10 + (token + 1) % 8


def run(drafter: Lookahead, seq: FakeSequence, steps: int) -> list[tuple[Draft, int]]:
    """Drafts of so many steps, and how many of their tokens were accepted."""
    out = []
    for _ in range(steps):
        draft = one(drafter, seq, 8)
        emitted = [said(seq.token_ids[-1])]
        while len(draft.follow(emitted)) == len(emitted):
            emitted.append(said(emitted[-1]))
        rows = [seq.token_ids[-1], *draft.tokens, *(draft.probes.tokens if draft.probes else ())]
        seq.token_ids += emitted
        top = torch.tensor([[said(token)] for token in rows])
        drafter.observe(seq, Committed(emitted, len(emitted) - 1, draft, row_top=top))
        out.append((draft, len(emitted) - 1))
    return out


def test_the_window_finds_what_the_target_says() -> None:
    drafter = lookahead(lookahead_pool_from_prompt=False, lookahead_window=4, lookahead_ngram=3)
    seq = FakeSequence([10, 20, 13, 21])
    drafter.begin(seq)
    steps = run(drafter, seq, 40)
    assert sum(accepted for _, accepted in steps) > 40
    for draft, _ in steps:
        assert draft.probes is not None
        assert len(draft.probes.tokens) in (4, 8)
        assert {draft.source_of(node) for node in range(len(draft))} <= {"lookahead"}


def test_no_end_of_sequence_enters_the_window() -> None:
    drafter = lookahead(lookahead_window=4, lookahead_ngram=3)
    seq = FakeSequence([EOS_ID, 3, EOS_ID, EOS_ID, 4])
    drafter.begin(seq)
    for _ in range(6):
        draft = one(drafter, seq, 8)
        assert draft.probes is not None
        assert EOS_ID not in draft.probes.tokens
        seq.token_ids.append(3)
        rows = 1 + len(draft) + len(draft.probes.tokens)
        drafter.observe(seq, Committed([3], 0, draft, row_top=torch.full((rows, 1), EOS_ID)))


def test_an_end_of_sequence_ends_a_phrase_and_begins_none() -> None:
    assert list(until([1, EOS_ID, 2], frozenset({EOS_ID}))) == [1, EOS_ID]
    drafter = lookahead(lookahead_ngram=4)
    seq = FakeSequence([3, EOS_ID, 4, 5, 6, 3])
    drafter.begin(seq)
    assert list(one(drafter, seq, 8).tokens) == [EOS_ID]
    seq.token_ids.append(EOS_ID)
    assert not len(one(drafter, seq, 8))


class Rows(NoEstimates):
    """A row adds ``share`` of a step without rows."""

    def __init__(self, share: float) -> None:
        self.share = share

    def going_rate(self, num_sequences: int) -> float:
        return 0.0

    def step_seconds(self, num_rows: int) -> float:
        return 1.0 + self.share * num_rows


@pytest.mark.parametrize(
    ("floor", "share", "least", "most"), [(0.0, 0.4, 60, 60), (0.1, 0.002, 50, 60), (0.1, 0.4, 0, 9)]
)
def test_probes_are_sent_while_they_pay(floor: float, share: float, least: int, most: int) -> None:
    config = SpeculativeConfig(
        method="lookahead", lookahead_pool_from_prompt=False, lookahead_window=3, lookahead_ngram=3
    )
    drafter: Any = registry.build(config, replace(CONTEXT, estimates=Rows(share)))
    drafter.confidence_floor = floor
    seq = FakeSequence([10, 20, 11, 21])
    drafter.begin(seq)
    steps = run(drafter, seq, 60)
    assert least <= sum(draft.probes is not None for draft, _ in steps) <= most
