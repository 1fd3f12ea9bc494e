"""Several draft models: what is joined, and that their caches follow the sequence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.test_draft_model import MODEL, VOCAB, facts, flat_curve, sequence
from outrider.core.draft import Draft, Iid
from outrider.drafters.base import Committed
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.specinfer import SpecInfer, merged, side_by_side
from outrider.drafters.trees import Comb, Dynamic, Paths, Shape, Widths
from outrider.engine.laws import FreshNoise, SharedNoise
from target import tiny

__all__ = ["flat_curve"]  # a fixture that every test here uses

OTHER = tiny.target_of(tiny.reference("qwen2"))
SHAPES: dict[str, Shape] = {
    "chain": Paths(),
    "tree": Widths([2, 1, 1]),
    "comb": Comb(2, 3),
    "dynamic": Dynamic(5, 3, 3),
}
texts = st.lists(st.integers(3, MODEL.vocab_size - 1), min_size=2, max_size=40)
noises = pytest.mark.parametrize("noise", [SharedNoise(), FreshNoise()], ids=["shared", "fresh"])
quick = settings(max_examples=20, deadline=None)


def drafter(shape: Shape, count: int = 2) -> SpecInfer:
    return SpecInfer([DraftModel(model, shape, VOCAB, 2048) for model in (MODEL, OTHER)[:count]])


def one(model: Any, seq: Any, budget: int, noise: Any) -> Draft:
    (draft,) = model.propose([seq], [budget], noise)
    draft.check(VOCAB, budget)
    return draft


def paths(draft: Draft) -> list[tuple[int, ...]]:
    return [tuple(draft.tokens[n] for n in draft.path(node)) for node in range(len(draft))]


@noises
@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "dynamic"])
def test_one_model_is_the_draft_model(shape: str, noise: Any) -> None:
    for seed in range(5):
        seq = sequence(tiny.tokens(12, seed))
        alone = one(DraftModel(MODEL, SHAPES[shape], VOCAB, 2048), seq, 6, noise)
        assert facts(one(drafter(SHAPES[shape], 1), seq, 6, noise)) == facts(alone)


@pytest.mark.parametrize("shape", SHAPES)
@quick
@given(text=texts, budget=st.integers(1, 12))
def test_delta_drafts_are_united_and_sampled_ones_stand_side_by_side(shape: str, text: list[int], budget: int) -> None:
    both, first, second = drafter(SHAPES[shape]), (budget + 1) // 2, budget // 2
    seq = sequence(text)
    for noise in (SharedNoise(), FreshNoise()) if shape != "dynamic" else (SharedNoise(),):
        draft = one(both, seq, budget, noise)
        if not noise.shared:
            most = SHAPES[shape].nodes(SHAPES[shape].max_levels or budget)
            assert len(draft) == min(first, most) + min(second, most)
            assert draft.laws is not None
            assert all(isinstance(law, Iid) for law in draft.laws)
            continue
        left = one(both.members[0], seq, first, noise)
        right = one(both.members[1], seq, second, noise)
        assert set(paths(draft)) == {*paths(left), *paths(right)}
        assert len(set(paths(draft))) == len(draft)
        assert draft.sources is not None
        for path, source in zip(paths(draft), draft.sources, strict=True):
            authors = [f"model {n}" for n, own in enumerate((left, right), 1) if path in paths(own)]
            assert source == ", ".join(authors)


def test_a_node_that_two_propose_has_the_better_score() -> None:
    left = Draft(tokens=[1, 2], parents=[-1, -1], scores=[0.5, 0.3], source="a")
    right = Draft(tokens=[2, 1, 5], parents=[-1, -1, 1], scores=[0.7, 0.1, 0.9], source="b")
    draft = merged([left, right], "both", ["a", "b"])
    assert list(draft.tokens) == [1, 2, 5]
    assert draft.parents == [-1, -1, 0]
    assert draft.scores == [0.5, 0.7, 0.9]
    assert draft.sources == ["a, b", "a, b", "b"]
    both = side_by_side([left, right], "both", ["a", "b"])
    assert list(both.tokens) == [1, 2, 2, 1, 5]
    assert both.parents == [-1, -1, -1, -1, 3]
    assert len(merged([Draft(), Draft()], "both", ["a", "b"])) == 0


def test_models_draw_with_numbers_of_their_own() -> None:
    """Twice the same model: were its draws shared, both chains would always be equal."""
    twins = SpecInfer([DraftModel(MODEL, Paths(), VOCAB, 2048) for _ in range(2)])
    differ = 0
    for seed in range(10):
        draft = one(twins, sequence(tiny.tokens(10, seed)), 4, FreshNoise())
        differ += list(draft.tokens[:2]) != list(draft.tokens[2:])
    assert differ > 5


@noises
@quick
@given(text=texts, more=texts, cut=st.integers(1, 80))
def test_all_caches_follow_the_sequence(noise: Any, text: list[int], more: list[int], cut: int) -> None:
    model, seq = drafter(SHAPES["tree"]), sequence(text)
    model.begin(seq)
    draft = one(model, seq, 7, noise)
    assert facts(draft) == facts(one(model, seq, 7, noise))
    new = [*(token for token in draft.tokens[:1] if token < MODEL.vocab_size), *more]
    seq.token_ids = [*text, *new]
    model.observe(seq, Committed(new))
    for length in (len(seq.token_ids), max(1, min(cut, len(seq.token_ids)))):
        seq.token_ids = seq.token_ids[:length]
        model.truncate(seq, length)
        fresh = drafter(SHAPES["tree"])
        fresh.begin(seq)
        assert facts(one(model, seq, 7, noise)) == facts(one(fresh, seq, 7, noise))
    model.release(seq)
    assert all(member.pool.num_free == member.pool.num_blocks for member in model.members)


@noises
def test_a_ragged_batch_equals_each_alone(noise: Any) -> None:
    seqs = [sequence(tiny.tokens(length, length), seq_id=length) for length in (3, 17, 40)]
    budgets = [1, 4, 9]
    together = drafter(SHAPES["tree"])
    for seq, budget, draft in zip(seqs, budgets, together.propose(seqs, budgets, noise), strict=True):
        assert facts(draft) == facts(one(drafter(SHAPES["tree"]), seq, budget, noise))
