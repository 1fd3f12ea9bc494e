"""The draft model's own contract: its cache follows the sequence, its proposals depend on the tokens alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.fakes import FakeSequence, keyed
from outrider.core.draft import Draft, Iid
from outrider.core.verifiers.registry import VERIFIERS
from outrider.drafters.base import Committed
from outrider.drafters.draft_model import DraftModel, Stops
from outrider.drafters.sampling import children
from outrider.drafters.trees import Comb, Dynamic, Paths, Shape, Static, Widths
from outrider.engine.laws import FreshNoise, SharedNoise
from target import tiny

CONTEXT = tiny.SMALL["max_position_embeddings"]
NET = tiny.reference("llama")
MODEL = tiny.target_of(NET)
VOCAB = MODEL.vocab_size + 4  # the target's embedding is padded further
SHAPES: dict[str, Shape] = {
    "chain": Paths(),
    "tree": Widths([3, 2, 1]),
    "paths": Paths(3),
    "comb": Comb(3, 4),
    "static": Static([[0.6, 0.2, 0.1], [0.5, 0.2], [0.4, 0.1], [0.4]], 12, 4),
}
DYNAMIC = {"dynamic": Dynamic(12, 3, 3), "opt": Dynamic(6, 4, 6, 0.05)}
shapes = pytest.mark.parametrize("shape", SHAPES)
delta_shapes = pytest.mark.parametrize("shape", [*SHAPES, *DYNAMIC])
noises = pytest.mark.parametrize("noise", [SharedNoise(), FreshNoise(), FreshNoise(merge_paths=True)])
temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])
texts = st.lists(st.integers(3, MODEL.vocab_size - 1), min_size=2, max_size=60)
quick = settings(max_examples=25, deadline=None)


@pytest.fixture(autouse=True)
def flat_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.drafters.draft_model.curve_of", lambda model: lambda rows: 0.001)


def drafter(shape: str = "chain", cache_tokens: int = 2048) -> DraftModel:
    return DraftModel(MODEL, (SHAPES | DYNAMIC)[shape], VOCAB, cache_tokens)


def sequence(tokens: Sequence[int], seq_id: int = 0, temperature: float = 1.0, **settings_: Any) -> FakeSequence:
    return keyed(tokens, VOCAB, seq_id, temperature, **settings_)


def one(model: DraftModel, seq: FakeSequence, budget: int = 6, noise: Any = None) -> Draft:
    (draft,) = model.propose([seq], [budget], noise or SharedNoise())
    draft.check(VOCAB, budget)
    return draft


def facts(draft: Draft) -> tuple[Any, ...]:
    parents = [draft.parent(node) for node in range(len(draft))]
    laws = None if draft.laws is None else [law.q.tolist() for law in draft.laws if isinstance(law, Iid)]
    return list(draft.tokens), parents, draft.scores, draft.multiplicity, laws


def test_the_native_kernel_and_its_torch_twin_propose_the_same() -> None:
    from outrider import native

    if native.library() is None:
        pytest.skip(native.status().reason)
    for shape in SHAPES:
        for seed in range(20):
            seq = sequence(tiny.tokens(12, seed))
            fast = one(drafter(shape), seq, noise=SharedNoise(native.library()))
            assert facts(fast) == facts(one(drafter(shape), seq, noise=SharedNoise()))


@shapes
@noises
@temperatures
@quick
@given(text=texts, budget=st.integers(0, 20))
def test_two_proposals_are_equal_and_keep_to_the_budget(
    shape: str, noise: Any, temperature: float, text: list[int], budget: int
) -> None:
    model, seq = drafter(shape), sequence(text, temperature=temperature)
    model.begin(seq)
    first = one(model, seq, budget, noise)
    assert facts(first) == facts(one(model, seq, budget, noise))
    assert bool(len(first)) == (budget > 0)
    if shape in ("chain", "paths"):
        assert max(first.depths(), default=0) <= max(1, budget // (3 if shape == "paths" else 1))
    assert (first.laws is None) == (noise.shared or not len(first))
    assert (first.multiplicity is not None) == (noise.merge_paths and len(first) > 0)


@delta_shapes
@temperatures
@quick
@given(text=texts, sizes=st.lists(st.tuples(st.integers(1, 7), st.booleans()), max_size=5), budget=st.integers(1, 9))
def test_begin_and_observe_equal_begin_on_the_longer_text(
    shape: str, temperature: float, text: list[int], sizes: list[tuple[int, bool]], budget: int
) -> None:
    model, seq = drafter(shape), sequence(text, temperature=temperature)
    model.begin(seq)
    for size, follows in sizes:
        draft = one(model, seq, budget)
        new = [3 + (7 * size + index) % 60 for index in range(size)]
        if follows:  # the longest path was accepted, and one token more
            deepest = max(range(len(draft)), key=lambda node: len(draft.path(node)))
            accepted = [draft.tokens[node] for node in draft.path(deepest)]
            new = [*accepted, new[0]]
            new = [token if token < MODEL.vocab_size else 3 for token in new]
        seq.token_ids = [*seq.token_ids, *new]
        model.observe(seq, Committed(new))
        assert model.num_computed(seq) < len(seq.token_ids)
        fresh = drafter(shape)
        fresh.begin(seq)
        assert facts(one(model, seq, budget)) == facts(one(fresh, seq, budget))
        assert model.num_computed(seq) == fresh.num_computed(seq) == len(seq.token_ids)


def test_accepted_chain_rows_are_not_computed_again() -> None:
    model, seq = drafter(), sequence(tiny.tokens(20))
    model.begin(seq)
    draft = one(model, seq, 5)
    new = [*draft.tokens, 9]
    seq.token_ids = [*seq.token_ids, *new]
    model.observe(seq, Committed(new))
    assert model.num_computed(seq) == len(seq.token_ids) - 2  # all but the last drafted token, and the root
    seq.token_ids = [*seq.token_ids, 11]
    model.observe(seq, Committed([11]))
    assert model.num_computed(seq) == len(seq.token_ids) - 3


@delta_shapes
@quick
@given(text=texts, more=texts, cut=st.integers(1, 200))
def test_truncate_undoes_observe(shape: str, text: list[int], more: list[int], cut: int) -> None:
    model, seq = drafter(shape), sequence(text)
    model.begin(seq)
    one(model, seq)
    seq.token_ids = [*text, *more]
    model.observe(seq, Committed(more))
    one(model, seq)
    seq.token_ids = seq.token_ids[: max(1, min(cut, len(seq.token_ids)))]
    model.truncate(seq, len(seq.token_ids))
    assert model.num_computed(seq) < len(seq.token_ids)
    fresh = drafter(shape)
    fresh.begin(seq)
    assert facts(one(model, seq)) == facts(one(fresh, seq))
    model.release(seq)
    assert model.pool.num_free == model.pool.num_blocks


@shapes
@noises
@quick
@given(batch=st.lists(texts, min_size=2, max_size=4))
def test_a_ragged_batch_equals_each_alone(shape: str, noise: Any, batch: list[list[int]]) -> None:
    together = drafter(shape)
    seqs = [sequence(text, seq_id=index) for index, text in enumerate(batch)]
    for seq in seqs:
        together.begin(seq)
    budgets = [2 + 3 * index for index in range(len(seqs))]
    for seq, budget, draft in zip(seqs, budgets, together.propose(seqs, budgets, noise), strict=True):
        assert facts(draft) == facts(one(drafter(shape), seq, budget, noise))


@delta_shapes
@pytest.mark.parametrize("length", range(CONTEXT - 8, CONTEXT + 3))
def test_the_drafts_own_context_is_never_exceeded(shape: str, length: int) -> None:
    model, seq = drafter(shape), sequence((tiny.tokens(50) * 6)[:length])
    model.begin(seq)
    draft = one(model, seq, 15)
    deepest = max(draft.depths(), default=0)
    assert deepest <= max(0, CONTEXT + 1 - length)  # the deepest node itself is never computed
    assert (deepest > 0) == (length <= CONTEXT)


@pytest.mark.parametrize("tokens", [[4, VOCAB - 1, 6], [VOCAB - 1]])
def test_ids_that_only_the_target_has(tokens: list[int]) -> None:
    draft = one(drafter(), sequence(tokens))
    assert len(draft) == 6
    assert max(draft.tokens) < MODEL.vocab_size


def test_laws_are_processed_as_the_targets_are() -> None:
    seq = sequence(tiny.tokens(9), temperature=0.7, top_k=4, allowed_token_ids=list(range(10, 60)))
    draft = one(drafter("paths"), seq, 6, FreshNoise())
    assert draft.laws is not None
    for node, law in enumerate(draft.laws):
        assert isinstance(law, Iid)
        assert law.q.shape == (VOCAB,)
        assert float(law.q.sum()) == pytest.approx(1.0)
        assert int((law.q > 0).sum()) == 4
        assert draft.scores is not None
        assert draft.scores[node] == pytest.approx(float(law.q[draft.tokens[node]]))
    greedy = one(drafter("chain"), sequence(tiny.tokens(9), temperature=0.0), 3, FreshNoise())
    assert greedy.laws is not None
    assert all(float(law.q.max()) == 1.0 for law in greedy.laws if isinstance(law, Iid))


def test_paths_that_meet_are_merged_and_counted() -> None:
    kseq, met, apart = VERIFIERS["kseq"](), 0, 0
    for seed in range(40):
        seq = sequence(tiny.tokens(6, seed), temperature=0.5)
        draft = one(drafter("paths"), seq, 6, FreshNoise(merge_paths=True))
        assert kseq.refuse(draft) is None
        assert draft.multiplicity is not None
        assert sum(draft.multiplicity[node] for node in draft.children()[0]) == 3
        met += any(count > 1 for count in draft.multiplicity)
        apart += len(draft.children()[0]) == 3
    assert met
    assert apart


def test_how_many_paths_leave_a_node_never_depends_on_what_was_drawn() -> None:
    """With less budget than paths, fewer are drawn: none is thrown away because it differs from the others."""
    for budget in range(1, 9):
        sums = set()
        for seed in range(30):
            draft = one(drafter("paths"), sequence(tiny.tokens(6, seed)), budget, FreshNoise(merge_paths=True))
            assert draft.multiplicity is not None
            per_level = [0] * max(draft.depths())
            for count, depth in zip(draft.multiplicity, draft.depths(), strict=True):
                per_level[depth - 1] += count
            sums.add(tuple(per_level))
        assert sums == {(min(3, budget),) * max(1, budget // min(3, budget))}


def test_a_full_pool_proposes_nothing_and_holds_nothing_it_cannot_free() -> None:
    model = drafter(cache_tokens=32)
    seqs = [sequence(tiny.tokens(20), seq_id=0), sequence(tiny.tokens(25), seq_id=1)]
    for seq in seqs:
        model.begin(seq)
    drafts = model.propose(seqs, [4, 4], SharedNoise())
    assert [len(draft) > 0 for draft in drafts] == [True, False]
    model.release(seqs[0])
    assert len(one(model, seqs[1], 4)) == 4
    model.close()
    assert model.pool.num_free == model.pool.num_blocks


def test_prompts_share_their_prefix_within_a_salt() -> None:
    model = drafter()
    rows = []
    forward = MODEL.forward
    shared = tiny.tokens(48)
    model.model = SimpleNamespace(  # type: ignore[assignment]
        forward=lambda spans, storage: rows.append(sum(len(span.tokens) for span in spans)) or forward(spans, storage),
        max_model_len=CONTEXT,
        vocab_size=MODEL.vocab_size,
    )
    for seq_id, salt in enumerate(["a", "a", "b"]):
        seq = sequence([*shared, 5 + seq_id, 6], seq_id=seq_id)
        seq.cache_salt = salt
        model.begin(seq)
    assert rows == [49, 1, 49]


def test_the_planners_floor_stops_unlikely_paths() -> None:
    model, seq = drafter(), sequence(tiny.tokens(8), temperature=1.5)
    full = one(model, seq, 8)
    model.confidence_floor = 0.5
    short = one(model, seq, 8)
    assert full.scores is not None
    assert list(short.tokens) == list(full.tokens[: len(short)])
    assert 1 <= len(short) < len(full)
    reach = torch.tensor(full.scores).cumprod(0)
    assert float(reach[len(short) - 1]) < 0.5


def test_a_path_stops_after_an_unlikely_token_and_not_before_it() -> None:
    for noise in (SharedNoise(), FreshNoise(), FreshNoise(merge_paths=True)):
        for shape in ("chain", "paths", "tree"):
            for seed in range(10):
                seq = sequence(tiny.tokens(8, seed), temperature=1.5)
                full = one(drafter(shape), seq, 12, noise)
                for stops in (Stops(confidence=0.3), Stops(rejection=0.8)):
                    model = DraftModel(MODEL, SHAPES[shape], VOCAB, 2048, stops)
                    short = one(model, seq, 12, noise)
                    _check_stops(full, short, stops)


def _check_stops(full: Draft, short: Draft, stops: Stops) -> None:
    """A node has children iff the rule lets it; what the first level holds is what it held without the rule."""
    assert short.scores is not None
    first = [full.tokens[node] for node in full.children()[0]]
    assert [short.tokens[node] for node in short.children()[0]] == first
    for node, below in enumerate(short.children()[1:]):
        reach = torch.tensor([short.scores[n] for n in short.path(node)], dtype=torch.float64).prod().item()
        assert stops.goes_on(short.scores[node], reach) or not below


def test_rows_of_a_growing_tree_attend_to_their_own_path() -> None:
    """A tree of any shape scores its nodes as a chain through the same tokens does."""
    for shape in ("tree", "comb", "static", *DYNAMIC):
        seq = sequence(tiny.tokens(9), temperature=0.0)
        draft = one(drafter(shape), seq, 12)
        assert draft.scores is not None
        for node in range(len(draft)):
            above = sequence([*seq.token_ids, *(draft.tokens[n] for n in draft.path(node)[:-1])], temperature=0.0)
            flat = one(DraftModel(MODEL, Widths([6]), VOCAB, 2048), above, 6)
            assert flat.scores is not None
            rank = list(flat.tokens).index(draft.tokens[node])
            assert draft.scores[node] == pytest.approx(flat.scores[rank], rel=1e-4)


def test_scores_say_what_the_target_will_take() -> None:
    """Siblings are ranked by log q + the target's noise, and so are their chances; they never sum to more than one."""
    noise = SharedNoise()
    for seed in range(20):
        seq = sequence(tiny.tokens(9, seed), temperature=1.0)
        draft = one(DraftModel(MODEL, Widths([4]), VOCAB, 2048), seq, 4)
        assert draft.scores is not None
        assert list(draft.scores) == sorted(draft.scores, reverse=True)
        assert 0.0 < sum(draft.scores) <= 1.0
        row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))
        picks = noise.candidates(seq, row, 9, 5)
        values = noise.perturbed(seq, row, 9, picks).tolist()
        assert values == sorted(values, reverse=True)
        everything = noise.perturbed(seq, row, 9, range(VOCAB))
        assert picks == everything.topk(5).indices.tolist()
    cold = sequence(tiny.tokens(9), temperature=0.0)
    assert noise.perturbed(cold, row, 9, [3, 5]).tolist() == row[[3, 5]].double().tolist()


def test_a_target_that_differs_a_little_takes_candidates_as_often_as_their_scores_say() -> None:
    """The target's log p is log q with noise of the scale that the scores assume: they are then calibrated."""
    noise, generator, expected, taken = SharedNoise(), torch.Generator().manual_seed(1), 0.0, 0
    for position in range(2000):
        seq = sequence([3, 4], temperature=1.0)
        row = 2.0 * torch.randn(VOCAB, generator=generator)
        ((token, chance, _, _),) = children(noise, seq, row, position, 1)
        expected += chance
        gumbel = -torch.empty(VOCAB).exponential_(generator=generator).log()
        taken += noise.candidates(seq, row + 0.3 * gumbel, position, 1) == [token]
    assert taken / 2000 == pytest.approx(expected / 2000, abs=0.04)
