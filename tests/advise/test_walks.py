"""Walks over recorded drafts: the counts that the engine's own steps would have."""

from __future__ import annotations

import pytest

from outrider.advise.walks import NEVER, pooled, shadow, walk
from outrider.core.draft import Draft

TEXT = [5, 6, 7, 8, 9, 4, 3]


def _shadows(drafts: dict[int, Draft]) -> list:
    return [shadow(drafts.get(at, Draft()), TEXT[at + 1 :]) for at in range(len(TEXT) - 1)]


def test_a_chain_is_followed_as_far_as_the_text_has_it() -> None:
    found = shadow(Draft(tokens=[6, 7, 1]), [6, 7, 8])
    assert list(found.path) == [0, 1]
    assert found.below == [0, 1, 2]
    assert shadow(Draft(tokens=[6]), [6, 7]).below == [0, NEVER]


def test_a_tree_is_followed_along_its_nodes() -> None:
    found = shadow(Draft(tokens=[1, 6, 2, 7], parents=[-1, -1, 0, 1]), [6, 7, 8])
    assert list(found.path) == [1, 3]
    assert found.below == [0, 3, NEVER]


def test_steps_start_where_the_step_before_ended() -> None:
    shadows = _shadows({0: Draft(tokens=[6, 7, 0]), 1: Draft(tokens=[7, 8, 9]), 3: Draft(tokens=[1, 1])})
    found = walk(shadows, 3, 10, 100, chain=True)
    assert (found.num_steps, found.num_tokens) == (4, 6)  # 0 -> 3 (two accepted), 3 -> 4, 4 -> 5, 5 -> 6
    assert (found.num_draft_tokens, found.num_accepted) == (5, 2)
    assert found.conditional[:3] == [0.5, 1.0, 0.0]
    assert found.rows == {4: 1, 3: 1, 1: 2}


def test_a_smaller_budget_cuts_the_same_drafts() -> None:
    shadows = _shadows({0: Draft(tokens=[6, 7, 8]), 2: Draft(tokens=[8])})
    found = walk(shadows, 1, 10, 100, chain=True)
    assert (found.num_draft_tokens, found.num_accepted) == (2, 2)
    assert found.tested[:2] == [2, 0]


def test_plain_decoding_is_a_token_a_step() -> None:
    found = walk(_shadows({}), 0, 10, 100, chain=False)
    assert found.num_steps == found.num_tokens == len(TEXT) - 1
    assert found.acceptance_rate is None
    assert found.context == pytest.approx(10 + 2.5)


def test_drafts_end_with_the_tokens_that_are_left() -> None:
    shadows = _shadows({0: Draft(tokens=[6, 7, 8, 9])})
    assert walk(shadows, 4, 10, 4, chain=True).num_draft_tokens == 2


def test_pools_add_up() -> None:
    one = walk(_shadows({0: Draft(tokens=[6])}), 1, 10, 100, chain=True)
    both = pooled([one, one])
    assert both.num_steps == 2 * one.num_steps
    assert both.rows[2] == 2
