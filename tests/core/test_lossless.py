"""Losslessness by enumeration: the law of what each rule emits equals the target's, and each mutant is caught."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from core import toy_drafters as toy
from core.enumeration import Drafter, Key, Model, Name, models, right_key, run_steps, tv
from outrider.core.draft import Draft, WithoutReplacement
from outrider.core.verifiers import block, edges, kseq, rejection, traversal
from outrider.core.verifiers.base import Randomness, TargetLaws, Verifier, Walk
from outrider.core.verifiers.registry import VERIFIERS, make_verifier
from outrider.core.verifiers.sample import Sample
from outrider.drafters import union
from outrider.errors import ContractError

EXACT = 1e-12
CAUGHT = 1e-3
DENSE = models(12)  # q covers the vocabulary in two models of three
SPARSE = models(12, zeros_q=1)
NARROW = models(10, zeros_q=2)  # q has two tokens
LOSSLESS = [name for name, rule in VERIFIERS.items() if rule.lossless]
CLASSICAL = [name for name in LOSSLESS if VERIFIERS[name].needs_laws]

CHAINS = {
    "iid chain": (toy.chain(2), DENSE),
    "iid chain of 3": (toy.chain(3), NARROW),
    "delta chain": (toy.chain(2, "d"), DENSE),
    "delta then iid": (toy.static((-1, 0), "di"), DENSE),
    "iid then delta": (toy.static((-1, 0), "id"), DENSE),
    "include the low token, then stop": (toy.stopping(2, 0.3), DENSE),
    "stop before a flat law": (toy.stop_before(2, 0.5), DENSE),
    "reduced draft vocabulary": (toy.chain(2, draft_law=toy.reduced), DENSE),
    "two draft models": (toy.static((-1, 0), "ii", who=(1, 2)), DENSE),
    "hierarchical": (toy.hierarchical(), SPARSE),
    "empty": (toy.static((), ""), DENSE),
}
TREES = {
    "iid (2, 2)": (toy.tree("i"), SPARSE),
    "iid (2, 1)": (toy.tree("i", toy.TWO_ONE), DENSE),
    "without replacement (2, 2)": (toy.tree("w"), SPARSE),
    "delta top-2 (2, 2)": (toy.tree("d"), DENSE),
    "delta + iid": (toy.static((-1, -1), "di"), DENSE),
    "iid + delta": (toy.static((-1, -1), "id"), DENSE),
    "delta + without replacement": (toy.static((-1, -1, -1), "dww"), DENSE),
    "iid + without replacement + delta": (toy.static((-1, -1, -1), "iwd"), DENSE),
    "mixed (2, 2)": (toy.static(toy.TWO_TWO, "didwii"), SPARSE),
    "pruned delta": (toy.pruned_delta(4), DENSE),
    "merged delta chains of two models": (toy.merged_delta(), DENSE),
    "merge of deterministic drafters": (toy.merged_by_union(8, toy.greedy_part(1), toy.greedy_part(2)), DENSE),
    "merge cut to its budget": (toy.merged_by_union(2, toy.greedy_part(1), toy.greedy_part(2)), DENSE),
    "merge of samples": (toy.joined_by_union(toy.drawn_part(1), toy.drawn_part(2)), DENSE),
    "merge of samples of one model": (toy.joined_by_union(toy.drawn_part(1), toy.drawn_part(1)), DENSE),
    "merge of a greedy chain and samples": (
        toy.joined_by_union(toy.greedy_part(2), toy.drawn_part(1, parents=(-1, 0)), toy.drawn_part(2)),
        NARROW,
    ),
    "merge of draws without replacement": (
        toy.joined_by_union(toy.greedy_part(2, 1), *[toy.drawn_part(1, WithoutReplacement, (-1, -1))] * 2),
        NARROW,
    ),
    "route, chosen before anything is drawn": (toy.routed(look=False), DENSE),
    "siblings of two draft models": (toy.tree("i", toy.TWO_ONE, who=(1, 2, 1, 2)), DENSE),
    "exhausted without replacement": (toy.tree("w", (-1, -1, -1, 1)), NARROW),
    "reduced vocabulary": (toy.tree("w", toy.TWO_ONE, draft_law=toy.reduced), DENSE),
    "deep and shallow": (toy.tree("i", (-1, 0, -1, 1)), SPARSE),
}
PATHS = {
    "2 paths of 1": (toy.paths(2, 1), DENSE),
    "3 paths of 1": (toy.paths(3, 1), DENSE),
    "2 paths of 2": (toy.paths(2, 2), NARROW),
    "3 paths of 2": (toy.paths(3, 2), NARROW[:2]),
}
IID_CHAINS = [name for name, (_, _) in CHAINS.items() if "delta" not in name]
PROOFS = (
    [(rule, name, *CHAINS[name]) for rule in ("rejection", "block", "traversal") for name in CHAINS]
    + [(rule, name, *TREES[name]) for rule in ("rejection", "traversal") for name in TREES]
    + [("kseq", name, *CHAINS[name]) for name in IID_CHAINS]
    + [("kseq", name, *PATHS[name]) for name in PATHS]
    + [("sample", name, *CHAINS[name]) for name in ("iid chain", "delta chain", "hierarchical", "empty")]
    + [("sample", name, *TREES[name]) for name in ("iid (2, 1)", "delta top-2 (2, 2)", "delta + without replacement")]
    + [("sample", "shared noise", toy.shared_noise_chain(2), DENSE), ("sample", "2 paths of 1", *PATHS["2 paths of 1"])]
)


@pytest.mark.parametrize(("rule", "name", "drafter", "toys"), PROOFS, ids=[f"{p[0]}-{p[1]}" for p in PROOFS])
def test_one_step_has_the_law_of_the_target(rule: str, name: str, drafter: Drafter, toys: list[Model]) -> None:
    for model in toys:
        outcome = run_steps(make_verifier(rule), [drafter], model)
        assert tv(outcome, model) <= EXACT
        assert not outcome.repeated or name == "shared noise"


TWO_STEPS = [
    ("sample", [toy.chain(2), toy.chain(1)]),
    ("sample", [toy.tree("d"), toy.tree("d", (-1, -1))]),
    ("sample", [toy.shared_noise_chain(2), toy.shared_noise_chain(2)]),
    ("rejection", [toy.chain(2), toy.chain(1)]),
    ("rejection", [toy.tree("w", (-1, -1, 0)), toy.static((-1, -1), "di")]),
    ("block", [toy.chain(2), toy.chain(2)]),
    ("traversal", [toy.tree("i", (-1, 0, -1)), toy.chain(2)]),
    ("sample", [toy.merged_by_union(3, toy.greedy_part(1), toy.greedy_part(2)), toy.chain(1)]),
    ("rejection", [toy.joined_by_union(toy.greedy_part(2, 1), toy.drawn_part(1)), toy.routed(look=False)]),
    ("kseq", [toy.paths(2, 1), toy.chain(1)]),
    ("kseq", [toy.chain(1), toy.paths(2, 1)]),
]


@pytest.mark.parametrize(("rule", "drafters"), TWO_STEPS)
def test_two_steps_have_the_law_of_the_target(rule: str, drafters: Sequence[Drafter]) -> None:
    for model in NARROW:
        outcome = run_steps(make_verifier(rule), drafters, model)
        assert tv(outcome, model) <= EXACT
        assert not outcome.repeated or drafters[0].__qualname__.startswith("shared_noise")


def position_only(name: Name) -> Hashable:
    """One number per position, whatever it is for."""
    return name.position


def purpose_and_position(name: Name) -> Hashable:
    """The root is missing: a second step meets numbers that the first one has looked at."""
    return name.purpose, name.position


def without_root(name: Name) -> Hashable:
    """Every step starts with the same numbers."""
    return name.purpose, name.node


BAD_KEYS: list[tuple[str, Key, list[Drafter], bool]] = [
    *((rule, position_only, [toy.chain(2), toy.chain(1)], False) for rule in CLASSICAL),
    *((rule, purpose_and_position, [toy.chain(2), toy.chain(1)], True) for rule in ("block", "traversal")),
    *((rule, without_root, [toy.chain(1), toy.chain(1)], True) for rule in CLASSICAL),
]


@pytest.mark.parametrize(("rule", "key", "drafters", "one_step_passes"), BAD_KEYS)
def test_a_key_that_repeats_over_two_steps_is_caught(
    rule: str, key: Key, drafters: list[Drafter], one_step_passes: bool
) -> None:
    verifier = make_verifier(rule)
    if one_step_passes:
        assert all(tv(run_steps(verifier, drafters[:1], model, key), model) <= EXACT for model in SPARSE[:4])
    outcomes = ((run_steps(verifier, drafters, model, key), model) for model in SPARSE)
    assert any(outcome.repeated and tv(outcome, model) > CAUGHT for outcome, model in outcomes)


def test_shared_noise_needs_the_position_only() -> None:
    for model in NARROW:
        outcome = run_steps(make_verifier("sample"), [toy.chain(2), toy.chain(1)], model, position_only_target)
        assert tv(outcome, model) <= EXACT


def position_only_target(name: Name) -> Hashable:
    """The target's own draws and the drafter's share one number per position."""
    return name.position if name.purpose in ("target", "draft") else right_key(name)


class FreshBonus(Sample):
    """Mutant of `sample`: a second draw after a mismatch."""

    def walk(self, draft: Draft, laws: TargetLaws, rng: Randomness) -> Walk:
        walk = super().walk(draft, laws, rng)
        node = walk.path[-1] if walk.path else -1
        return Walk(walk.path, rng.categorical(laws.probs(node), "recovered", node))


class PerLeaf(Sample):
    """Mutant of `sample`: every leaf draws its own row of target samples, and the longest match wins."""

    def walk(self, draft: Draft, laws: TargetLaws, rng: Randomness) -> Walk:
        best = Walk([], -1)
        for leaf in [node for node in range(len(draft)) if not draft.children()[node + 1]]:
            path: list[int] = []
            for node in (*draft.path(leaf), -1):
                above = path[-1] if path else -1
                token = rng.categorical(laws.probs(above), f"leaf {leaf}", above)
                if node < 0 or token != draft.tokens[node]:
                    break
                path.append(node)
            if best.next_token < 0 or len(path) > len(best.path):
                best = Walk(path, token)
        return best


def from_target(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    """Resample from p, not from the residual."""
    return p


def unscaled(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    """A residual that is not renormalised before the next sibling is tried."""
    rest, mass = edges.excess(1.0, p, q, token)
    return rest if mass > 0.0 else p


def keep_rejected_delta(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    """A rejected point mass is not taken out of p."""
    return p if q is None else edges.residual(p, q, token)


def token_residual(value: float, p: Tensor, q: Tensor | None, token: int) -> tuple[float, Tensor]:
    """The residual of the token rule in a joint rule."""
    return edges.remainder(value, p, q, token)[0], edges.residual(p, q, token)


def weight_as_test(value: float, p: Tensor, q: Tensor | None, token: int) -> tuple[float, Tensor]:
    """A prefix is kept with its weight, whatever failed below it."""
    return value, edges.remainder(value, p, q, token)[1]


def forgets_weight(value: float, p: Tensor, q: Tensor | None, token: int) -> float:
    """The joint weight does not carry over from the parent."""
    return edges.acceptance(1.0, p, q, token)


def first_in_trie(passed: list[int], rng: Randomness, node: int) -> int:
    """An order of trial that depends on the tokens: equal paths first."""
    return next(rank for rank, count in enumerate(passed) if count)


def never_reduced(rule: Callable[..., object]) -> Callable[..., object]:
    """k stays at K = 2 below the root."""
    return lambda *args: rule(*args[:-1], 2)


def rerank(drawn: list[int], q: Tensor) -> list[int]:
    """Sampled siblings in the order of q."""
    return sorted(drawn, key=lambda token: -float(q[token]))


def prune(drawn: list[int], q: Tensor) -> list[int]:
    """The likeliest of the sampled siblings."""
    return rerank(drawn, q)[:1]


def dedup(drawn: list[int], q: Tensor) -> list[int]:
    """Sampled siblings without their duplicates."""
    return list(dict.fromkeys(drawn))


@dataclass(frozen=True)
class Mutant:
    """A wrong rule (``patches``: module, attribute, replacement; or ``wrong``) or a wrong draft, and what it hurts."""

    what: str
    rule: str
    drafter: Drafter
    patches: Sequence[tuple[object, str, object]] = ()
    wrong: Verifier | None = None


class _FromMiddle(rejection.Rejection):
    """Inner rule that draws the recovered token from the middle model's law instead of the residual."""

    def walk(self, draft: Draft, laws: TargetLaws, rng: Randomness) -> Walk:
        walk = super().walk(draft, laws, rng)
        if walk.path:
            return walk
        return Walk([], rng.categorical(laws.probs(-1), "middle", -1))


BAD_RULES = [
    Mutant("resample from p", "rejection", toy.chain(2), [(rejection, "residual", from_target)]),
    Mutant("resample from p, delta", "rejection", toy.tree("d"), [(rejection, "residual", keep_rejected_delta)]),
    Mutant("residual not renormalised", "rejection", toy.tree("i"), [(rejection, "residual", unscaled)]),
    Mutant("fresh bonus after a mismatch", "sample", toy.chain(2), wrong=FreshBonus()),
    Mutant("one sample per leaf row", "sample", toy.static((-1, -1), "dd"), wrong=PerLeaf()),
    *(
        Mutant(what, rule, drafter, [(module, name, replacement)])
        for rule, module, drafter in (
            ("block", block, toy.chain(2)),
            ("traversal", traversal, toy.tree("i", toy.TWO_ONE)),
        )
        for what, name, replacement in (
            ("residual of the token rule", "remainder", token_residual),
            ("prefix kept by its weight", "remainder", weight_as_test),
            ("weight not carried over", "acceptance", forgets_weight),
        )
    ),
    Mutant("resample from p", "kseq", toy.paths(2, 1), [(kseq, "leftover", lambda p, q, rho, paths: p)]),
    Mutant("rho of one path", "kseq", toy.paths(2, 1), [(kseq, "solve_rho", lambda p, q, paths: 1.0)]),
    Mutant(
        "k not reduced",
        "kseq",
        toy.paths(2, 2),
        [(kseq, name, never_reduced(getattr(kseq, name))) for name in ("solve_rho", "leftover")],
    ),
    Mutant("paths tried in the order of the trie", "kseq", toy.paths(3, 1), [(kseq, "_pick", first_in_trie)]),
]
PAIR = (toy.drawn_part(1), toy.drawn_part(2))
MIXED = (toy.greedy_part(1, 1), toy.drawn_part(1))
BAD_DRAFTS = [
    *(
        mutant
        for rule in ("rejection", "block", "traversal")
        for mutant in (
            Mutant("low token dropped", rule, toy.stopping(2, 0.3, include=False)),
            Mutant("argmax with soft q", rule, toy.chain(2, "d", claim="ii")),
            Mutant("another temperature", rule, toy.chain(2, draft_law=toy.tempered, claimed_law=toy.same)),
            Mutant("another vocabulary", rule, toy.chain(2, draft_law=toy.reduced, claimed_law=toy.same)),
            Mutant("middle model resamples from p", rule, toy.hierarchical(_FromMiddle())),
        )
    ),
    *(
        mutant
        for rule in ("rejection", "traversal")
        for mutant in (
            Mutant("sampled siblings re-ranked", rule, toy.siblings(rerank)),
            Mutant("sampled siblings pruned", rule, toy.siblings(prune)),
            Mutant("equal samples of two members are one", rule, toy.joined_by_union(*PAIR, edit=toy.once)),
            Mutant("a sample that a greedy member has", rule, toy.joined_by_union(*MIXED, edit=toy.once)),
            Mutant("samples cut by what they are", rule, toy.joined_by_union(*PAIR, edit=toy.likeliest)),
            Mutant("members share their draws", rule, toy.joined_by_union(*PAIR, own_draws=False)),
            Mutant("route by what was drawn", rule, toy.routed(look=True)),
            Mutant("iid siblings without duplicates", rule, toy.siblings(dedup)),
            Mutant("without replacement as iid", rule, toy.static((-1, -1), "ww", claim="ii")),
            Mutant("iid sibling that avoids a delta one", rule, toy.static((-1, -1), "dw", claim="di")),
        )
    ),
    Mutant("low token dropped", "kseq", toy.stopping(2, 0.3, include=False)),
    Mutant("argmax with soft q", "kseq", toy.chain(2, "d", claim="ii")),
    Mutant("another temperature", "kseq", toy.chain(2, draft_law=toy.tempered, claimed_law=toy.same)),
    Mutant("multiplicities forgotten", "kseq", toy.paths(2, 1, counted=False)),
]


def _worst(mutant: Mutant, verifier: Verifier) -> float:
    """The first TV above the bar over the models, else the greatest."""
    worst = 0.0
    for model in DENSE:
        worst = max(worst, tv(run_steps(verifier, [mutant.drafter], model), model))
        if worst > CAUGHT:
            break
    return worst


@pytest.mark.parametrize("mutant", BAD_RULES, ids=lambda m: f"{m.rule}-{m.what}")
def test_a_wrong_rule_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, replacement in mutant.patches:
        monkeypatch.setattr(module, name, replacement)
    assert _worst(mutant, mutant.wrong or make_verifier(mutant.rule)) > CAUGHT


def test_draws_without_replacement_may_not_stand_behind_other_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their law excludes all earlier siblings: left as it is, it would say what was not drawn."""
    monkeypatch.setattr(union, "_freed", Draft.law)
    drafter = toy.joined_by_union(toy.greedy_part(1, 1), toy.drawn_part(1, WithoutReplacement))
    with pytest.raises(ContractError, match="under its own law"):
        run_steps(make_verifier("rejection"), [drafter], DENSE[0])


@pytest.mark.parametrize("mutant", BAD_DRAFTS, ids=lambda m: f"{m.rule}-{m.what}")
def test_a_dishonest_draft_is_caught(mutant: Mutant) -> None:
    assert _worst(mutant, make_verifier(mutant.rule)) > CAUGHT


@pytest.mark.parametrize("mutant", BAD_DRAFTS[:9], ids=lambda m: m.what)
def test_the_sample_rule_does_not_mind_a_dishonest_draft(mutant: Mutant) -> None:
    for model in NARROW[:4]:
        assert tv(run_steps(make_verifier("sample"), [mutant.drafter], model), model) <= EXACT


@pytest.mark.parametrize("rule", [name for name in VERIFIERS if name not in LOSSLESS])
def test_lossy_rules_are_lossy(rule: str) -> None:
    assert _worst(Mutant(rule, rule, toy.tree("d")), make_verifier(rule)) > CAUGHT


def _accepted(rule: str, drafter: Drafter, toys: Sequence[Model] = DENSE) -> Tensor:
    """Mean number of accepted draft tokens for each model."""
    return torch.tensor([run_steps(make_verifier(rule), [drafter], model).accepted for model in toys])


def test_the_sample_rule_accepts_delta_trees_as_rejection_does() -> None:
    for drafter in (toy.tree("d"), toy.merged_delta(), toy.chain(2, "d")):
        torch.testing.assert_close(_accepted("sample", drafter), _accepted("rejection", drafter), rtol=0, atol=EXACT)


def test_joint_rules_never_accept_less_than_token_rules() -> None:
    chain, tree = toy.chain(2), toy.tree("i", toy.TWO_ONE)
    token, joint = _accepted("rejection", chain), _accepted("block", chain)
    assert bool((joint >= token - EXACT).all())
    assert float((joint - token).max()) > CAUGHT
    assert float(_accepted("traversal", tree).mean() - _accepted("rejection", tree).mean()) > CAUGHT
    torch.testing.assert_close(joint, _accepted("traversal", chain), rtol=0, atol=EXACT)


def test_without_replacement_beats_iid_and_iid_beats_matching() -> None:
    pair = (-1, -1)
    swor, iid, match = (
        float(_accepted(rule, toy.tree(kind, pair)).mean())
        for rule, kind in (("rejection", "w"), ("rejection", "i"), ("sample", "i"))
    )
    assert swor > iid + 0.01 > match + 0.1


def test_shared_noise_beats_an_independent_sample() -> None:
    shared, independent = (_accepted("sample", drafter) for drafter in (toy.shared_noise_chain(2), toy.chain(2)))
    assert float(shared.mean() - independent.mean()) > 0.1


def test_kseq_with_one_path_is_rejection_and_more_paths_accept_more() -> None:
    one, two, three = (_accepted("kseq", toy.paths(count, 1)) for count in (1, 2, 3))
    torch.testing.assert_close(one, _accepted("rejection", toy.chain(1)), rtol=0, atol=EXACT)
    assert bool((two >= one - 1e-9).all())
    assert bool((three >= two - 1e-9).all())
    assert float((two - one).max()) > CAUGHT
