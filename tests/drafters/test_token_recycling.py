"""Token recycling: rows are the target's best ids, trees hold the best paths, tenants are apart, memory is bounded."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.conformance import CONTEXT, EOS_ID, VOCAB_SIZE, check_draft, one
from drafters.fakes import FakeSequence
from outrider.config import SpeculativeConfig
from outrider.core.draft import Draft, Probes
from outrider.drafters import registry
from outrider.drafters.base import Committed
from outrider.drafters.hints import PerSalt
from outrider.drafters.token_recycling import TokenRecycling

K = 3


def recycling(**options: Any) -> TokenRecycling:
    options = {"token_recycling_topk": K, **options}
    drafter = registry.build(SpeculativeConfig(method="token_recycling", **options), CONTEXT)
    assert isinstance(drafter, TokenRecycling)
    return drafter


def step(drafter: TokenRecycling, seq: FakeSequence, rows: dict[int, list[int]], steps: int = 1) -> None:
    """Steps without a draft: the root is a key of ``rows``, the best ids there are its values."""
    for _ in range(steps):
        for token, top in rows.items():
            seq.token_ids.append(token)
            drafter.observe(seq, Committed([token]))
            seq.token_ids.append(top[0])
            drafter.observe(seq, Committed([top[0]], row_top=torch.tensor([top])))


def begun(drafter: TokenRecycling, salt: str = "", seq_id: int = 0) -> FakeSequence:
    seq = FakeSequence([0, 1], seq_id=seq_id, cache_salt=salt)
    drafter.begin(seq)
    return seq


tops = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=K, max_size=K, unique=True)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    shape=st.lists(st.integers(0, 100), min_size=8, max_size=8),
    probes=st.lists(st.integers(0, 9), max_size=4),
    accepted=st.integers(0, 8),
    data=st.data(),
)
def test_rows_of_the_matrix_are_the_targets_last_best_ids(
    tokens: list[int], shape: list[int], probes: list[int], accepted: int, data: st.DataObject
) -> None:
    parents = [shape[node] % (node + 1) - 1 for node in range(len(tokens))]
    draft = Draft(tokens, parents, probes=Probes(probes, [-1] * len(probes)) if probes else None)
    path = draft.path(min(accepted, len(tokens)) - 1)
    emitted = [tokens[node] for node in path]
    path = draft.follow(emitted)
    top = data.draw(st.lists(tops, min_size=1 + len(tokens) + len(probes), max_size=1 + len(tokens) + len(probes)))
    drafter = recycling()
    seq = begun(drafter)
    root = seq.token_ids[-1]
    seq.token_ids += [*emitted, 7]
    drafter.observe(seq, Committed([*emitted, 7], len(emitted), draft, row_top=torch.tensor(top)))
    matrix = drafter.matrices.get("")
    assert matrix is not None
    by_row = [root, *tokens, *probes]
    on_path = {0, *(node + 1 for node in path)}
    for token in set(by_row):
        rows = [row for row, each in enumerate(by_row) if each == token]
        best = max(set(rows) & on_path, default=rows[-1])
        assert matrix.following(token)[0] == top[best]
    assert matrix.following(next(t for t in range(VOCAB_SIZE) if t not in by_row)) == ([], 0)


@settings(max_examples=60, deadline=None)
@given(rows=st.dictionaries(st.integers(0, 9), tops, min_size=1, max_size=10), budget=st.integers(1, 12))
def test_a_draft_holds_the_best_paths_of_the_matrix(rows: dict[int, list[int]], budget: int) -> None:
    drafter = recycling()
    seq = begun(drafter)
    step(drafter, seq, rows)
    seq.token_ids.append(next(iter(rows)))
    draft = one(drafter, seq, budget)
    full = one(drafter, seq, 64)
    assert draft.scores is not None
    assert full.scores is not None
    for node in range(len(full)):
        above = seq.token_ids[-1] if full.parent(node) < 0 else full.tokens[full.parent(node)]
        assert full.tokens[node] in rows[above]

    def chances(of: Draft) -> list[float]:
        out: list[float] = []
        for node in range(len(of)):
            assert of.scores is not None
            out.append(of.scores[node] * (out[of.parent(node)] if of.parent(node) >= 0 else 1.0))
        return out

    assert chances(draft) == sorted(chances(full), reverse=True)[: len(draft)]
    assert len(draft) == min(budget, len(full))


def test_fixed_widths_make_a_breadth_first_tree() -> None:
    drafter = recycling(tree=[2, 1])
    seq = begun(drafter)
    step(drafter, seq, {2: [3, 4, 5], 3: [6, 7, 8], 4: [9, 2, 3]})
    seq.token_ids.append(2)
    draft = one(drafter, seq, 8)
    assert (list(draft.tokens), draft.parents) == ([3, 4, 6, 9], [-1, -1, 0, 1])
    assert list(one(drafter, seq, 3).tokens) == [3, 4, 6]


def test_nothing_follows_an_end_of_sequence() -> None:
    for options in ({}, {"tree": [2, 2, 2]}):
        drafter = recycling(**options)
        seq = begun(drafter)
        step(drafter, seq, {2: [EOS_ID, 3, 4], EOS_ID: [2, 5, 6]})
        seq.token_ids.append(2)
        check_draft(one(drafter, seq, 16), seq, 16)


def test_a_steady_row_is_trusted_more() -> None:
    first = []
    for steps in (1, 2, 3, 4):
        drafter = recycling()
        seq = begun(drafter)
        step(drafter, seq, {2: [3, 4, 5]}, steps)
        seq.token_ids.append(2)
        scores = one(drafter, seq, 1).scores
        assert scores is not None
        first.append(scores[0])
    assert first == sorted(set(first))


def test_requests_share_a_matrix_within_a_salt_only() -> None:
    drafter = recycling()
    seq = begun(drafter, "a", 1)
    step(drafter, seq, {2: [3, 4, 5]})
    drafter.release(seq)
    for salt, expected in (("a", 3), ("b", 0), ("", 0)):
        other = begun(drafter, salt, 2)
        other.token_ids.append(2)
        assert len(one(drafter, other, 8)) == expected
        drafter.release(other)


def test_salts_are_bounded_and_the_least_recently_used_goes() -> None:
    hints = PerSalt(lambda: [0], 2)
    for salt in "abac":
        hints.use(salt)[0] += 1
    assert [hints.get(salt) for salt in "abc"] == [[2], None, [1]]
    assert len(hints) == 2
    counter = itertools.count()
    assert PerSalt(lambda: next(counter), 0).use("x") == 0
