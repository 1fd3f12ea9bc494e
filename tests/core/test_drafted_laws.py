"""Laws of what the model drafters propose: their own code, over every branch of their draws and the rule's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from torch import Tensor

from core import real_drafters as real_
from core.enumeration import Drafter, Draws, Model, Tape, branches, models, run_steps, tv
from core.real_drafters import TapeNoise, draft_model, real, specinfer
from outrider.core.draft import Draft
from outrider.core.verifiers.registry import make_verifier
from outrider.drafters import specinfer as specinfer_module
from outrider.drafters.base import DraftNoise, DraftSequence
from outrider.drafters.draft_model import DraftModel, Stops
from outrider.drafters.trees import Comb, Dynamic, Growth, Paths, Static, Widths

EXACT, CAUGHT = 1e-12, 1e-3
NARROW = models(6, zeros_q=2)  # q has two tokens
DENSE = models(6)
LOW, LIKELY_WRONG = Stops(confidence=0.5), Stops(rejection=0.45)
CHAIN_RULES, TREE_RULES = ("rejection", "block", "traversal"), ("rejection", "traversal")


@pytest.fixture(autouse=True)
def flat_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.drafters.draft_model.curve_of", lambda model: lambda rows: 0.001)


CHAINS: dict[str, Drafter] = {
    "chain": real(draft_model(Paths()), 2),
    "low confidence ends a chain": real(draft_model(Paths(), LOW), 3),
    "a likely rejection ends a chain": real(draft_model(Paths(), LIKELY_WRONG), 3),
    "both": real(draft_model(Paths(), Stops(0.4, 0.6)), 3),
    "specinfer of one model": real(specinfer(Paths(), count=1), 2),
}
TREES: dict[str, Drafter] = {
    "widths (2, 1)": real(draft_model(Widths([2, 1])), 4),
    "widths (2, 1), 3 of 4 nodes": real(draft_model(Widths([2, 1])), 3),
    "widths (2, 1) that stops": real(draft_model(Widths([2, 1]), LOW), 4),
    "comb": real(draft_model(Comb(2, 2)), 4),
    "static": real(draft_model(Static([[0.6, 0.3], [0.5, 0.4]], 4, 2)), 4),
    "specinfer, chains of 2": real(specinfer(Paths()), 4),
    "specinfer, uneven shares": real(specinfer(Paths()), 3),
    "specinfer, siblings of both": real(specinfer(Widths([2])), 4),
    "specinfer, chains that stop": real(specinfer(Paths(), LIKELY_WRONG), 4),
}
PATHS: dict[str, Drafter] = {
    "one path": real(draft_model(Paths(1)), 2, merge_paths=True),
    "2 paths of 2": real(draft_model(Paths(2)), 4, merge_paths=True),
    "3 paths of 1": real(draft_model(Paths(3)), 3, merge_paths=True),
    "2 paths that stop": real(draft_model(Paths(2), LOW), 4, merge_paths=True),
    "2 paths, a likely rejection": real(draft_model(Paths(2), LIKELY_WRONG), 4, merge_paths=True),
}
PROOFS = [
    *((rule, name, drafter) for rule in CHAIN_RULES for name, drafter in CHAINS.items()),
    *((rule, name, drafter) for rule in TREE_RULES for name, drafter in TREES.items()),
    *(("kseq", name, drafter) for name, drafter in PATHS.items()),
    *(("sample", name, drafter) for name, drafter in [*list(CHAINS.items())[1:3], *list(TREES.items())[-2:]]),
]


@pytest.mark.parametrize(("rule", "name", "drafter"), PROOFS, ids=[f"{p[0]}-{p[1]}" for p in PROOFS])
def test_what_is_drafted_leaves_the_law_alone(rule: str, name: str, drafter: Drafter) -> None:
    for model in NARROW:
        outcome = run_steps(make_verifier(rule), [drafter], model)
        assert tv(outcome, model) <= EXACT
        assert not outcome.repeated


def drafted(drafter: Drafter, model: Model, tape: Tape) -> Draft:
    return drafter(model, (), Draws(tape))


def test_some_chains_stop_and_some_do_not() -> None:
    """The proofs above would say little otherwise."""
    for name in ("low confidence ends a chain", "a likely rejection ends a chain"):
        lengths = {len(draft) for model in NARROW for _, draft in branches(partial(drafted, CHAINS[name], model))}
        assert lengths == {1, 2, 3}


def test_kseq_with_one_path_is_rejection_sampling() -> None:
    for drafter in (PATHS["one path"], real(draft_model(Paths(1), LOW), 2, merge_paths=True)):
        for model in DENSE:
            one, other = (run_steps(make_verifier(rule), [drafter], model) for rule in ("kseq", "rejection"))
            assert one.accepted == pytest.approx(other.accepted, abs=EXACT)
            assert one.weights.keys() == other.weights.keys()
            assert all(abs(one.weights[text] - other.weights[text]) <= EXACT for text in one.weights)


def test_specinfer_of_one_model_is_that_model() -> None:
    for shape in (Paths(), Widths([2, 1])):
        one, other = real(specinfer(shape, count=1), 4), real(draft_model(shape), 4)
        for model in NARROW[:3]:
            left, right = (run_steps(make_verifier("rejection"), [drafter], model) for drafter in (one, other))
            assert left.weights == right.weights


def test_two_models_accept_more_than_one() -> None:
    one, two = (
        sum(run_steps(make_verifier("rejection"), [drafter], model).accepted for model in NARROW)
        for drafter in (real(draft_model(Paths()), 2), TREES["specinfer, chains of 2"])
    )
    assert two > one + 0.1


class SharedDraws(specinfer_module.OwnNoise):
    """Mutant: all models draw with the same numbers."""

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        return self._noise.sample(seq, weights, position, index)


def without_duplicates(drafts: Sequence[Draft], source: str, names: Sequence[str]) -> Draft:
    """Mutant: what two models draw stands once, with the law of the first."""
    draft = side_by_side(drafts, source, names)
    seen: set[tuple[int, int]] = set()
    kept = []
    for node in range(len(draft)):
        key = (draft.parent(node), draft.tokens[node])
        if key not in seen and (draft.parent(node) < 0 or draft.parent(node) in kept):
            kept.append(node)
        seen.add(key)
    return draft.keep(kept)


side_by_side = specinfer_module.side_by_side


def drop_low(self: DraftModel, growth: Growth, noise: DraftNoise) -> Draft:
    """Mutant: the token that ends a path is left out."""
    draft = growth.draft(noise.merge_paths, "x")
    stays = [self._stops.goes_on(growth.scores[node], growth.reach[node]) for node in range(len(draft))]
    return draft.keep([node for node in range(len(draft)) if all(stays[above] for above in draft.path(node))])


class Picky(TapeNoise):
    """Mutant: decides from the sampled token, before it is sampled for good: an unlikely one is drawn again."""

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        token = super().sample(seq, weights, position, index)
        return token if float(weights[token]) >= LOW.confidence else super().sample(seq, weights, position, index + 50)


STOPPING = [
    *((rule, real(draft_model(Paths(), stops), 2)) for rule in CHAIN_RULES for stops in (LOW, LIKELY_WRONG)),
    ("traversal", real(specinfer(Paths(), LOW), 4)),
    ("kseq", real(draft_model(Paths(2), LOW), 2, merge_paths=True)),
]


def worst(rule: str, drafter: Drafter) -> float:
    """The greatest TV over the models."""
    return max(tv(run_steps(make_verifier(rule), [drafter], model), model) for model in NARROW)


@pytest.mark.parametrize(("rule", "drafter"), STOPPING)
def test_a_token_left_out_is_caught(rule: str, drafter: Drafter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftModel, "_finish", drop_low)
    assert worst(rule, drafter) > CAUGHT


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_a_token_drawn_again_is_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_, "TapeNoise", Picky)
    assert worst(rule, real(draft_model(Paths()), 2)) > CAUGHT


@pytest.mark.parametrize("rule", TREE_RULES)
def test_models_that_share_their_draws_are_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specinfer_module, "OwnNoise", SharedDraws)
    assert worst(rule, TREES["specinfer, siblings of both"]) > CAUGHT


@pytest.mark.parametrize("rule", TREE_RULES)
def test_duplicates_left_out_are_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specinfer_module, "side_by_side", without_duplicates)
    assert worst(rule, TREES["specinfer, siblings of both"]) > CAUGHT


@pytest.mark.parametrize("rule", TREE_RULES)
def test_a_dynamic_tree_of_samples_is_caught(rule: str) -> None:
    """Why the config check refuses it: the likeliest of the sampled siblings are not samples."""
    assert worst(rule, real(draft_model(Dynamic(nodes=2, depth=1, topk=3)), 2)) > CAUGHT
