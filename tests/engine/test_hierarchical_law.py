"""Losslessness of three levels and more, through the real inner engine: every branch of every random choice.

Target, middle model and draft model are toys; the hierarchical drafter, its engine, scheduler, cache and the draft
model within are the real ones, and live through the steps of a run, so that their rollbacks are part of the proof.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from core.enumeration import models, run_steps, tv
from core.test_lossless import CAUGHT, EXACT, FreshBonus
from engine.toy_engine import FLAT, hierarchical
from outrider.core.verifiers import rejection
from outrider.core.verifiers.registry import make_verifier
from outrider.core.verifiers.rejection import Rejection
from outrider.engine.laws import SharedNoise

NARROW = models(6, zeros_q=2)  # q of the lower levels has two tokens
RULES = ("rejection", "block", "traversal", "kseq")


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat cost curves; whatever a rig puts into the engine's modules is taken out again."""
    from outrider.engine import drafting, step

    monkeypatch.setattr("outrider.engine.inner.curve_of", lambda model: FLAT)
    monkeypatch.setattr("outrider.drafters.draft_model.curve_of", lambda model: FLAT)
    for module, name in ((step, "StreamRandomness"), (drafting, "FreshNoise")):
        monkeypatch.setattr(module, name, getattr(module, name))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("levels", [2, 3])
def test_one_step_has_the_law_of_the_target(rule: str, levels: int) -> None:
    for model in NARROW[: 4 if levels == 2 else 2]:
        outcome = run_steps(make_verifier(rule), [hierarchical(2, levels)], model)
        assert tv(outcome, model) <= EXACT
        assert outcome.accepted > 0.01


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_two_steps_have_the_law_of_the_target(rule: str) -> None:
    for model in NARROW[1:2]:
        outcome = run_steps(make_verifier(rule), [hierarchical(2), hierarchical(1)], model)
        assert tv(outcome, model) <= EXACT


def test_an_inner_engine_under_rejection_has_it_too() -> None:
    for model in NARROW[:3]:
        outcome = run_steps(make_verifier("rejection"), [hierarchical(2, rule=Rejection())], model)
        assert tv(outcome, model) <= EXACT


def _worst(rule: str, drafters: list[Any]) -> float:
    return max(tv(run_steps(make_verifier(rule), drafters, model), model) for model in NARROW[:3])


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_middle_level_that_draws_again_after_a_mismatch_is_caught(rule: str) -> None:
    assert _worst(rule, [hierarchical(2, rule=FreshBonus())]) > CAUGHT


class _FromMiddle(Rejection):
    """TriForce's middle level: what follows a rejection comes from the middle model's law, not from the residual."""

    def walk(self, *args: Any) -> Any:
        right = rejection.residual
        rejection.residual = _whole
        try:
            return super().walk(*args)
        finally:
            rejection.residual = right


def _whole(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    return p


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_middle_level_that_resamples_from_its_own_law_is_caught(rule: str) -> None:
    assert _worst(rule, [hierarchical(2, rule=_FromMiddle())]) > CAUGHT


class _SameKey(SharedNoise):
    """Noise of an engine whose drafts look at the same numbers in every step."""

    shared = False


def test_noise_that_is_used_again_in_a_later_step_is_caught() -> None:
    steps = [hierarchical(2, noise=_SameKey()), hierarchical(1, noise=_SameKey())]
    assert _worst("block", steps[:1]) <= EXACT  # one step alone does not show it
    assert tv(run_steps(make_verifier("block"), steps, NARROW[0]), NARROW[0]) > CAUGHT
