"""Verifiers: what they refuse, edge cases of their arithmetic, definitions of the lossy rules, properties."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.core.draft import DELTA, EMPTY, Delta, Draft, Iid, Law, WithoutReplacement
from outrider.core.noise import StreamRandomness
from outrider.core.verifiers.base import Walk, shape_of
from outrider.core.verifiers.edges import acceptance, edge_law, remainder, residual
from outrider.core.verifiers.kseq import KSeq, overlap, passing, solve_rho
from outrider.core.verifiers.registry import VERIFIERS, make_verifier
from outrider.errors import ConfigError, ContractError, NumericsError

CLASSICAL = [name for name, rule in VERIFIERS.items() if rule.needs_laws]


def law(*weights: float) -> Tensor:
    """A float64 law in proportion to ``weights``."""
    values = torch.tensor(weights, dtype=torch.float64)
    return values / values.sum()


class FixedLaws:
    """``TargetLaws`` from a table: ``rows[node + 1]``; the target's sample is the argmax."""

    def __init__(self, rows: Sequence[Tensor]) -> None:
        self.rows = rows
        self.drawn: list[int] = []

    def probs(self, node: int) -> Tensor:
        """Row of ``node``."""
        return self.rows[node + 1]

    def draw(self, node: int) -> int:
        """Argmax of the row of ``node``."""
        self.drawn.append(node)
        return int(self.rows[node + 1].argmax())


class Scripted:
    """``Randomness`` that answers every bernoulli alike, takes the likeliest token, and keeps what it was asked."""

    def __init__(self, accept: bool) -> None:
        self.accept = accept
        self.asked: list[tuple[str, int, object]] = []

    def categorical(self, weights: Tensor, purpose: str, node: int) -> int:
        """The index of the greatest weight."""
        self.asked.append((purpose, node, [round(value, 9) for value in weights.tolist()]))
        return int(weights.argmax())

    def bernoulli(self, probability: float, purpose: str, node: int) -> bool:
        """The scripted answer, unless the probability decides."""
        self.asked.append((purpose, node, round(min(1.0, probability), 9)))
        return self.accept if 0.0 < probability < 1.0 else probability >= 1.0


FLAT = law(1, 1, 1, 1)


@pytest.mark.parametrize("name", VERIFIERS)
def test_an_empty_draft_is_a_plain_step(name: str) -> None:
    laws = FixedLaws([law(1, 5, 2, 1)])
    assert make_verifier(name).walk(EMPTY, laws, Scripted(True)) == Walk([], 1)


def test_unknown_verifier_lists_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"'greedy' is unknown; choose one of: sample, rejection, block"):
        make_verifier("greedy")


def test_only_lossy_rules_are_flagged_lossy() -> None:
    assert {name for name, rule in VERIFIERS.items() if not rule.lossless} == {"typical", "threshold"}


def test_shapes() -> None:
    assert shape_of(Draft([1, 2])) == "chain"
    assert shape_of(Draft([1, 2], multiplicity=[1, 1])) == "chain"
    assert shape_of(Draft([1, 2], multiplicity=[2, 1])) == "paths"
    assert shape_of(Draft([1, 2], parents=[-1, -1])) == "tree"
    assert shape_of(Draft([1, 2], parents=[-1, -1], multiplicity=[1, 1])) == "paths"


TREE = Draft([0, 1], parents=[-1, -1], laws=[Iid(FLAT), Iid(FLAT)], source="tiny")
TWO_PATHS = Draft([0, 1], parents=[-1, -1], laws=[Iid(FLAT), Iid(FLAT)], multiplicity=[2, 1])
WITHOUT = Draft([0, 1], laws=[WithoutReplacement(FLAT)] * 2)
REFUSED = [
    ("block", TREE, "'block' takes chain drafts, not tree"),
    ("block", WITHOUT, "'block' takes edges of law Delta or Iid, not WithoutReplacement"),
    ("rejection", TWO_PATHS, "'rejection' takes chain or tree drafts, not paths"),
    ("traversal", TWO_PATHS, "'traversal' takes chain or tree drafts, not paths"),
    ("kseq", TREE, "'kseq' takes chain or paths drafts, not tree"),
    ("kseq", Draft([0]), "'kseq' takes edges of law Iid, not Delta"),
    ("kseq", Draft([0, 0], [-1, -1], [Iid(FLAT)] * 2, [1, 1]), "merge equal siblings"),
    ("kseq", Draft([0, 1], [-1, -1], [Iid(FLAT), Iid(law(2, 1, 1, 1))], [1, 1]), "siblings of one q"),
    ("kseq", Draft([0, 1], [-1, -1], [Iid(FLAT)] * 2, [1, 0]), "a multiplicity of one or more"),
    ("kseq", Draft([0, 1, 2], [-1, 0, 0], [Iid(FLAT)] * 3, [1, 1, 1]), "more paths leave a node than enter it"),
]


@pytest.mark.parametrize(("name", "draft", "reason"), REFUSED)
def test_a_draft_that_does_not_fit_is_refused(name: str, draft: Draft, reason: str) -> None:
    verifier = make_verifier(name)
    refusal = verifier.refuse(draft)
    assert refusal is not None
    assert reason in refusal
    with pytest.raises(ContractError, match=r"\(draft of "):
        verifier.walk(draft, FixedLaws([FLAT] * 4), Scripted(True))


@pytest.mark.parametrize("name", ["sample", "typical", "threshold"])
def test_rules_without_laws_take_every_draft(name: str) -> None:
    assert all(make_verifier(name).refuse(draft) is None for draft in (TREE, TWO_PATHS, WITHOUT, EMPTY))


def test_a_combination_is_refused_before_there_is_a_draft() -> None:
    assert VERIFIERS["block"].refuse_kind("chain", [Iid, Delta]) is None
    assert "not tree" in str(VERIFIERS["block"].refuse_kind("tree", [Delta]))
    assert "not Delta" in str(VERIFIERS["kseq"].refuse_kind("paths", [Delta]))


def test_sample_takes_the_first_of_equal_siblings_and_never_draws_twice() -> None:
    draft = Draft([2, 3, 3, 1], parents=[-1, -1, -1, 1])
    laws = FixedLaws([law(0, 0, 0, 1), FLAT, law(0, 1, 0, 0), FLAT, law(1, 0, 0, 0)])
    assert make_verifier("sample").walk(draft, laws, Scripted(True)) == Walk([1, 3], 0)
    assert laws.drawn == [-1, 1, 3]


def test_rejection_asks_for_the_ratio_then_draws_from_the_residual() -> None:
    p, q = law(1, 2, 3, 4), law(4, 3, 2, 1)
    rng = Scripted(False)
    walk = make_verifier("rejection").walk(Draft([0], laws=[Iid(q)]), FixedLaws([p, p]), rng)
    assert walk == Walk([], 3)
    assert rng.asked == [("accept", 0, 0.25), ("recovered", -1, [0.0, 0.0, 0.25, 0.75])]


def test_rejection_takes_a_rejected_point_mass_out_of_the_law() -> None:
    p = law(1, 2, 3, 4)
    rng = Scripted(False)
    make_verifier("rejection").walk(Draft([3, 3], parents=[-1, -1]), FixedLaws([p, p, p]), rng)
    sixths = [round(weight / 6, 9) for weight in (1, 2, 3, 0)]
    assert rng.asked == [("accept", 0, 0.4), ("accept", 1, 0.0), ("recovered", -1, sixths)]


@pytest.mark.parametrize("name", CLASSICAL)
def test_a_draft_model_equal_to_the_target_is_always_accepted(name: str) -> None:
    p = law(1, 2, 3, 4)
    draft = Draft([0, 1, 2], laws=[Iid(p)] * 3)
    assert make_verifier(name).walk(draft, FixedLaws([p] * 4), Scripted(False)).path == [0, 1, 2]


def test_no_residual_falls_back_to_the_law_itself() -> None:
    p = law(1, 2, 3, 4)
    assert residual(p, p * (1.0 + 1e-15), 0) is p
    assert remainder(1.0, p, p, 0) == (1.0, p)
    assert remainder(0.5, p, p, 0) == (0.0, p)


def test_without_replacement_excludes_all_earlier_siblings_and_ends_uniform() -> None:
    q = law(1, 3, 0, 0)
    draft = Draft([1, 0, 3], parents=[-1] * 3, laws=[DELTA, WithoutReplacement(q), WithoutReplacement(q)])
    second, third = edge_law(draft, 1, [0], q), edge_law(draft, 2, [0, 1], q)
    assert second is not None
    assert third is not None
    assert second.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert third.tolist() == [0.0, 0.0, 0.5, 0.5]
    assert q.tolist() == [0.25, 0.75, 0.0, 0.0]


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (Draft([3], laws=[Iid(law(1, 1, 1, 0))]), "probability 0.0 under its own law"),
        (Draft([0], laws=[Iid(FLAT * math.nan)]), "probability nan under its own law"),
        (Draft([0], laws=[Iid(law(1, 1, 1))]), "spread it over the target's vocabulary"),
        (Draft([1, 1], [-1, -1], [DELTA, WithoutReplacement(FLAT)]), "probability 0.0 under its own law"),
    ],
)
def test_a_law_that_cannot_be_the_tokens_own_is_refused(draft: Draft, reason: str) -> None:
    with pytest.raises(ContractError, match=reason):
        make_verifier("rejection").walk(draft, FixedLaws([FLAT] * 3), Scripted(False))


@pytest.mark.parametrize("name", ["rejection", "block", "traversal"])
def test_nan_is_never_accepted(name: str) -> None:
    bad_q = Draft([0, 0], laws=[Iid(torch.tensor([0.5, math.nan, 0.25, 0.25], dtype=torch.float64)), Iid(FLAT)])
    with pytest.raises(NumericsError, match="NaN"):
        make_verifier(name).walk(bad_q, FixedLaws([FLAT] * 3), Scripted(False))
    with pytest.raises(NumericsError, match="NaN"):
        make_verifier(name).walk(Draft([0], laws=[Iid(FLAT)]), FixedLaws([FLAT * math.nan] * 2), Scripted(False))


def test_acceptance_is_capped_at_one() -> None:
    assert acceptance(1.0, law(1, 1), law(1, 9), 0) == 1.0
    assert acceptance(0.5, law(1, 1), None, 0) == 0.25


def test_typical_is_its_definition() -> None:
    p = law(50, 30, 15, 5)
    entropy = -sum(x * math.log(x) for x in p.tolist())
    bar = 0.3 * math.exp(-entropy)
    assert 0.05 < bar < 0.15
    draft = Draft([3, 2, 0], parents=[-1, -1, 1])  # token 3 is under the bar, 2 and 0 over it
    rows = [p, p, p, law(1, 0, 0, 0)]
    by_entropy, by_threshold = (make_verifier("typical", typical_threshold=value) for value in (0.9, 0.04))
    assert by_entropy.walk(draft, FixedLaws(rows), Scripted(True)) == Walk([1, 2], 0)
    assert by_threshold.walk(Draft([3]), FixedLaws(rows), Scripted(True)).path == [0]


def test_threshold_takes_the_longest_then_the_likeliest_path() -> None:
    p = law(50, 30, 15, 5)
    draft = Draft([0, 1, 2, 1, 0], parents=[-1, -1, 1, 1, 0])
    longest = make_verifier("threshold").walk(draft, FixedLaws([p] * 6), Scripted(True))
    assert longest == Walk([0, 4], 0)
    strict = make_verifier("threshold", typical_threshold=0.4).walk(Draft([1]), FixedLaws([p] * 2), Scripted(True))
    assert strict == Walk([], 0)


@pytest.mark.parametrize("name", VERIFIERS)
def test_at_temperature_zero_every_rule_is_greedy(name: str) -> None:
    rows = [law(0, 1, 0, 0), law(0, 0, 1, 0), law(1, 0, 0, 0)]
    point = [Iid(row) for row in (law(0, 1, 0, 0), law(0, 0, 0, 1))]
    draft = Draft([1, 3], laws=point)
    walk = make_verifier(name).walk(draft, FixedLaws(rows), Scripted(True))
    assert walk == Walk([0], 2)


weights = st.lists(st.sampled_from([0.0, 1e-6, 0.1, 0.5, 1.0, 3.0]), min_size=5, max_size=5)
laws32 = weights.filter(any).map(lambda w: torch.tensor(w, dtype=torch.float32) / sum(w))


@st.composite
def drafts(draw: st.DrawFn, name: str) -> tuple[Draft, FixedLaws]:
    """A draft that the rule takes, drawn honestly enough that each token has mass, and target laws for its nodes."""
    size = draw(st.integers(0, 5))
    rule = VERIFIERS[name]
    parents = [draw(st.integers(-1, node - 1)) if "tree" in rule.shapes else node - 1 for node in range(size)]
    kinds = sorted((kind.__name__ for kind in rule.laws), reverse=True)
    tokens: list[int] = []
    edges: list[Law] = []
    for node, parent in enumerate(parents):
        earlier = {tokens[n] for n in range(node) if parents[n] == parent}
        kind, q = draw(st.sampled_from(kinds)), draw(laws32)
        live = [token for token in range(5) if q[token] > 0 and (kind != "WithoutReplacement" or token not in earlier)]
        if kind == "Delta" or not live:
            tokens.append(draw(st.integers(0, 4)))
            edges.append(DELTA if "Delta" in kinds else Iid(torch.full((5,), 0.2)))
        else:
            tokens.append(draw(st.sampled_from(live)))
            edges.append(Iid(q) if kind == "Iid" else WithoutReplacement(q))
    rows = [draw(laws32) for _ in range(size + 1)]
    return Draft(tokens, parents, edges), FixedLaws(rows)


@pytest.mark.parametrize("name", CLASSICAL)
@settings(deadline=None, max_examples=60)
@given(data=st.data(), key=st.integers(0, 2**64 - 1))
def test_what_is_emitted_is_possible_under_the_target(name: str, data: st.DataObject, key: int) -> None:
    draft, laws = data.draw(drafts(name))
    walk = make_verifier(name).walk(draft, laws, StreamRandomness(key, 7))
    assert [draft.parent(node) for node in walk.path] == [-1, *walk.path][: len(walk.path)]
    emitted = [draft.tokens[node] for node in walk.path] + [walk.next_token]
    for node, token in zip([-1, *walk.path], emitted, strict=True):
        assert float(laws.probs(node)[token]) > 0.0
    assert make_verifier(name).walk(draft, laws, StreamRandomness(key, 7)) == walk


@settings(deadline=None, max_examples=60)
@given(data=st.data(), accept=st.booleans())
def test_traversal_of_a_chain_is_block_verification(data: st.DataObject, accept: bool) -> None:
    draft, laws = data.draw(drafts("block"))
    asked = []
    for name in ("block", "traversal"):
        rng = Scripted(accept)
        walk = make_verifier(name).walk(draft, laws, rng)
        asked.append((walk, rng.asked))
    assert asked[0] == asked[1]


@settings(deadline=None, max_examples=60)
@given(p=laws32, q=laws32, paths=st.integers(1, 8))
def test_rho_solves_its_equation(p: Tensor, q: Tensor, paths: int) -> None:
    p, q = p.double() / p.double().sum(), q.double() / q.double().sum()
    rho = solve_rho(p, q, paths)
    beta = overlap(p, q, rho)
    assert 1.0 <= rho <= paths
    assert passing(beta, paths) <= rho * beta + 1e-12
    assert rho == 1.0 or beta == 0.0 or math.isclose(passing(beta, paths), rho * beta, rel_tol=1e-6)


def test_kseq_reduces_k_to_the_survivors() -> None:
    p, q = law(1, 2, 3, 4), law(4, 3, 2, 1)
    draft = Draft([0, 1, 2], [-1, -1, 0], [Iid(q)] * 3, [2, 1, 1])
    rng = Scripted(True)
    walk = KSeq().walk(draft, FixedLaws([p] * 4), rng)
    assert walk.path == [0, 2]
    last = next(chance for purpose, node, chance in rng.asked if node == 2)
    assert last == 1.0  # one survivor: rho = 1 and p(2) > q(2)
    assert [ask[:2] for ask in rng.asked] == [
        ("accept 0", 0), ("accept 1", 0), ("accept 0", 1), ("select", -1), ("accept 0", 2), ("bonus", 2)
    ]  # fmt: skip
