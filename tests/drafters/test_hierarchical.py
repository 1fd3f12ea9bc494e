"""The hierarchical drafter's contract over real tiny models, and that its draft is the plain draft model's chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.fakes import FakeSequence, keyed
from outrider.config import SpeculativeConfig
from outrider.core.draft import Draft, Iid
from outrider.drafters import registry
from outrider.drafters.base import Committed, Drafter, DraftSource, Needs
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.hierarchical import Hierarchical, build
from outrider.drafters.registry import DrafterContext
from outrider.drafters.trees import Paths
from outrider.engine.inner import InnerEngine
from outrider.engine.laws import FreshNoise, SharedNoise
from outrider.errors import ConfigError, ContractError, NumericsError
from outrider.target.costs import CostCurve
from target import tiny

CONTEXT = tiny.SMALL["max_position_embeddings"]
MODEL = tiny.target_of(tiny.reference("llama"))
SMALL = tiny.target_of(tiny.reference("qwen2", vocab_size=tiny.VOCAB - 6))
VOCAB = MODEL.vocab_size + 4  # the target's embedding is padded further
EOS = 2
SETTINGS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 1},
    "suffix tree": {"method": "suffix", "suffix_decoding_tree": True, "suffix_decoding_min_token_prob": 0.0},
    "fixed": {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 5},
    "off": {"method": "ngram", "num_speculative_tokens": 0},
    "draft model": {"method": "draft_model", "model": "small", "num_speculative_tokens": 3},
    "three levels": {
        "method": "hierarchical",
        "model": "small",
        "num_speculative_tokens": 3,
        "drafter": {"method": "ngram", "prompt_lookup_min": 1},
    },
}
settings_ = pytest.mark.parametrize("name", SETTINGS)
noises = pytest.mark.parametrize("noise", [SharedNoise(), FreshNoise()], ids=["shared", "fresh"])
temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])
texts = st.lists(st.sampled_from([3, 4, 5, 60, VOCAB - 1]), min_size=2, max_size=50)
sizes = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=5)
quick = settings(max_examples=12, deadline=None)


@pytest.fixture(autouse=True)
def flat_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("drafters.draft_model", "engine.inner"):
        monkeypatch.setattr(f"outrider.{module}.curve_of", lambda model: CostCurve((1, 1001), (0.001001, 0.002001)))


def drafter(name: str = "ngram", cache_tokens: int = 2048, strict: bool = True) -> Hierarchical:
    """The middle model is ``MODEL``; a model further down is ``SMALL``."""

    def load_draft(config: SpeculativeConfig) -> DraftSource:
        return DraftSource(MODEL if config.model == "middle" else SMALL, cache_tokens)

    def inner_loop(config: SpeculativeConfig) -> InnerEngine:
        assert config.drafter is not None
        return InnerEngine(load_draft(config), config.drafter, registry.build(config.drafter, context), VOCAB, strict)

    context = DrafterContext(VOCAB, CONTEXT, frozenset({EOS}), load_draft=load_draft, inner_loop=inner_loop)
    config = SpeculativeConfig(method="hierarchical", model="middle", drafter=SpeculativeConfig(**SETTINGS[name]))
    return build(config, context)


def plain(cache_tokens: int = 2048) -> DraftModel:
    return DraftModel(MODEL, Paths(), VOCAB, cache_tokens)


def sequence(tokens: Sequence[int], seq_id: int = 0, temperature: float = 1.0, **options: Any) -> FakeSequence:
    return keyed(tokens, VOCAB, seq_id, temperature, **options)


def one(model: Drafter, seq: FakeSequence, budget: int = 6, noise: Any = None) -> Draft:
    (draft,) = model.propose([seq], [budget], noise or SharedNoise())
    draft.check(VOCAB, budget)
    return draft


def facts(draft: Draft) -> tuple[Any, ...]:
    laws = None if draft.laws is None else [law.q.tolist() for law in draft.laws if isinstance(law, Iid)]
    return list(draft.tokens), draft.parents, draft.scores, laws


def follow(seq: FakeSequence, draft: Draft, accepted: int, more: int) -> list[int]:
    """Up to ``accepted`` drafted tokens and ``more`` others, appended to the sequence."""
    new = [*list(draft.tokens)[:accepted], *(3 + (7 * accepted + n) % 60 for n in range(more))]
    seq.token_ids = [*seq.token_ids, *new]
    return new


def let_go(model: Hierarchical, *seqs: FakeSequence) -> None:
    """Everything is free once the sequences have left."""
    for seq in seqs:
        model.release(seq)
    at: Any = model
    while hasattr(at, "inner"):
        assert at.pool.num_free == at.pool.num_blocks
        assert not at._states
        assert not at.inner._twins
        at = at.inner.method.drafter


@settings_
@temperatures
@quick
@given(text=texts, steps=sizes, budget=st.integers(1, 9))
def test_with_shared_noise_the_draft_is_the_chain_of_the_plain_draft_model(
    name: str, temperature: float, text: list[int], steps: list[tuple[int, int]], budget: int
) -> None:
    model, reference, seq = drafter(name), plain(), sequence(text, temperature=temperature)
    model.begin(seq)
    reference.begin(seq)
    for accepted, more in [*steps, (0, 1)]:
        draft = one(model, seq, budget)
        assert facts(draft) == facts(one(reference, seq, budget))
        assert facts(draft) == facts(one(model, seq, budget))
        assert facts(one(model, seq, 2)) == facts(one(reference, seq, 2))
        new = follow(seq, draft, accepted, more)
        for each in (model, reference):
            each.observe(seq, Committed(new))
    let_go(model, seq)


@settings_
@temperatures
@quick
@given(text=texts, steps=sizes, budget=st.integers(1, 9))
def test_with_fresh_noise_tokens_are_drawn_anew_in_every_step_whatever_the_inner_drafter(
    name: str, temperature: float, text: list[int], steps: list[tuple[int, int]], budget: int
) -> None:
    model, seq, noise = drafter(name), sequence(text, temperature=temperature), FreshNoise()
    model.begin(seq)
    for accepted, more in [*steps, (0, 1)]:
        draft = one(model, seq, budget, noise)
        assert facts(draft) == facts(one(model, seq, budget, noise))
        fresh = drafter("off")
        fresh.begin(seq)
        assert facts(draft) == facts(one(fresh, seq, budget, noise))
        assert draft.laws is not None
        for node, law in enumerate(draft.laws):
            assert isinstance(law, Iid)
            assert float(law.q.sum()) == pytest.approx(1.0)
            assert draft.scores is not None
            assert draft.scores[node] == pytest.approx(float(law.q[draft.tokens[node]]))
        new = follow(seq, draft, accepted, more)
        model.observe(seq, Committed(new))
    let_go(model, seq)


def test_fresh_laws_are_those_of_the_plain_draft_model() -> None:
    seq = sequence(tiny.tokens(12), temperature=0.8, top_k=5, repetition_penalty=1.3)
    draft = one(drafter(), seq, 4, FreshNoise())
    for node, law in enumerate(draft.laws or ()):
        ahead = sequence([*seq.token_ids, *list(draft.tokens)[:node]], temperature=0.8, top_k=5, repetition_penalty=1.3)
        (want,) = one(plain(), ahead, 1, FreshNoise()).laws or ()
        assert isinstance(law, Iid)
        assert isinstance(want, Iid)
        torch.testing.assert_close(law.q, want.q, rtol=0, atol=0)


def test_a_step_at_the_same_position_with_another_root_draws_other_tokens() -> None:
    model, seen = drafter(), set()
    for accepted in range(5):  # the draft of position 12 from roots 7 to 11
        seq = sequence(tiny.tokens(8 + accepted), temperature=3.0)
        seen.add(list(one(model, seq, 12 - accepted, FreshNoise()).tokens)[4 - accepted])
        model.release(seq)
    assert len(seen) > 2


@settings_
@noises
@quick
@given(text=texts, more=texts, cut=st.integers(1, 99), budget=st.integers(1, 7))
def test_truncate_undoes_observe(
    name: str, noise: Any, text: list[int], more: list[int], cut: int, budget: int
) -> None:
    model, seq = drafter(name), sequence(text)
    model.begin(seq)
    one(model, seq, budget, noise)
    seq.token_ids = [*text, *more]
    model.observe(seq, Committed(more))
    one(model, seq, budget, noise)
    seq.token_ids = seq.token_ids[: max(1, min(cut, len(seq.token_ids)))]
    model.truncate(seq, len(seq.token_ids))
    follow(seq, one(model, seq, budget, noise), 2, 1)
    fresh = drafter(name)
    fresh.begin(seq)
    assert facts(one(model, seq, budget, noise)) == facts(one(fresh, seq, budget, noise))
    let_go(model, seq)


@settings_
@noises
@quick
@given(batch=st.lists(texts, min_size=2, max_size=4))
def test_a_ragged_batch_equals_each_alone(name: str, noise: Any, batch: list[list[int]]) -> None:
    together = drafter(name)
    seqs = [sequence(text, seq_id=index) for index, text in enumerate(batch)]
    for seq in seqs:
        together.begin(seq)
    budgets = [2 + 3 * index for index in range(len(seqs))]
    for seq, budget, draft in zip(seqs, budgets, together.propose(seqs, budgets, noise), strict=True):
        assert facts(draft) == facts(one(drafter("off"), seq, budget, noise))
    let_go(together, *seqs)


@settings_
@pytest.mark.parametrize("length", [CONTEXT - 8, CONTEXT - 3, CONTEXT - 1, CONTEXT, CONTEXT + 1])
def test_the_middle_models_context_is_never_exceeded(name: str, length: int) -> None:
    model, seq = drafter(name), sequence((tiny.tokens(50) * 6)[:length])
    model.begin(seq)
    draft = one(model, seq, 15)
    assert len(draft) == min(15, max(0, CONTEXT + 1 - length))
    assert facts(draft) == facts(one(plain(), seq, 15))
    let_go(model, seq)


def rows_of(model: Hierarchical) -> list[int]:
    """Rows of every forward of the middle model from now on."""
    engine, rows = model.inner.engine, []  # type: ignore[attr-defined]
    forward = engine.target.forward
    target = engine.target = engine.target.over(VOCAB + 1).over(VOCAB)  # a copy to put a spy into
    target.forward = lambda spans, *args: rows.append(sum(len(s.tokens) for s in spans)) or forward(spans, *args)
    return rows


def test_agreeing_tokens_are_not_computed_again_and_what_is_ahead_is_kept() -> None:
    model, seq = drafter("off"), sequence(tiny.tokens(20))
    model.begin(seq)
    rows = rows_of(model)
    draft = one(model, seq, 5)
    assert rows == [1] * 5
    del rows[:]
    one(model, seq, 4)
    assert not rows
    follow(seq, draft, 2, 0)  # the target goes the same way: three tokens are left of what is written
    assert list(one(model, seq, 5).tokens)[:3] == list(draft.tokens)[2:]
    assert rows == [1, 1]
    del rows[:]
    follow(seq, draft, 0, 1)  # another way: the root alone is computed
    one(model, seq, 1)
    assert rows == [1]


def test_an_inner_draft_saves_forwards() -> None:
    steps = {}
    for name in ("off", "fixed"):
        model, seq = drafter(name), sequence([5, 6, 7, 8] * 8, temperature=0.0)
        model.begin(seq)
        rows = rows_of(model)
        draft = one(model, seq, 16)
        follow(seq, draft, 16, 0)
        one(model, seq, 16)
        steps[name] = len(rows)
    assert steps["off"] == 32
    assert steps["fixed"] < 28


def test_seconds_follow_what_inner_steps_cost() -> None:
    model, seq = drafter("fixed"), sequence([5, 6, 7, 8] * 8, temperature=0.0)
    assert model.seconds(1, 4) == pytest.approx(4 * model.inner.plain_seconds(1))
    model.begin(seq)
    for _ in range(12):
        follow(seq, one(model, seq, 12), 12, 0)
    assert model.seconds(1, 8) < 6.5 * model.inner.plain_seconds(1)
    assert model.more_seconds(1) < 0.8 * model.inner.plain_seconds(1)
    assert model.seconds(1, 0) == 0.0


@settings_
@noises
def test_the_planners_floor_stops_unlikely_chains(name: str, noise: Any) -> None:
    for seed in range(6):
        seq = sequence(tiny.tokens(8, seed), temperature=1.5)
        full = one(plain(), seq, 8, noise)
        assert full.scores is not None
        reach = torch.tensor(full.scores).cumprod(0).tolist()
        model = drafter(name)
        model.confidence_floor = 0.5
        short = one(model, seq, 8, noise)
        assert facts(short) == facts(one(model, seq, 8, noise))
        stop = next((at for at, chance in enumerate(reach, start=1) if chance < 0.5), 8)
        if noise.shared:
            assert facts(short) == facts(full.keep(range(len(short))))
            assert len(short) >= stop
        else:  # other tokens than the plain draft model's, and the same rule
            chances = torch.tensor(short.scores).cumprod(0).tolist()
            assert all(chance >= 0.5 for chance in chances[:-1])
            assert len(short) == 8 or chances[-1] < 0.5


def test_a_full_pool_proposes_nothing_until_there_is_room() -> None:
    model = drafter(cache_tokens=48)
    seqs = [sequence(tiny.tokens(20), seq_id=0), sequence(tiny.tokens(25, 1), seq_id=1)]
    for seq in seqs:
        model.begin(seq)
    drafts = model.propose(seqs, [4, 4], SharedNoise())
    assert [len(draft) > 0 for draft in drafts] == [True, False]
    model.release(seqs[0])
    assert facts(one(model, seqs[1], 4)) == facts(one(plain(), seqs[1], 4))
    let_go(model, *seqs)


def test_the_middle_model_failing_is_told_and_leaves_nothing() -> None:
    model = drafter()
    seqs = [sequence(tiny.tokens(20), seq_id=0), sequence(tiny.tokens(25, 1), seq_id=1)]
    for seq in seqs:
        model.begin(seq)
    rows_of(model)
    target = model.inner.engine.target  # type: ignore[attr-defined]
    forward = target.forward

    def broken(spans: Any, *args: Any) -> Any:
        if any(span.start >= 24 for span in spans):
            raise NumericsError("raw logits hold NaN")
        return forward(spans, *args)

    target.forward = broken
    with pytest.raises(NumericsError, match="NaN"):
        model.propose(seqs, [4, 4], SharedNoise())
    assert facts(one(model, seqs[0], 3)) == facts(one(plain(), seqs[0], 3))
    with pytest.raises(NumericsError, match="NaN"):
        one(model, seqs[1], 4)
    let_go(model, *seqs)


@pytest.mark.parametrize("strict", [True, False])
def test_a_failing_inner_drafter_leaves_the_middle_model_alone(strict: bool) -> None:
    model, seq = drafter(strict=strict), sequence(tiny.tokens(20))
    inner: Any = model.inner
    inner.method.drafter.propose = lambda *args: 1 / 0
    model.begin(seq)
    if strict:
        with pytest.raises(ContractError, match="ZeroDivisionError"):
            one(model, seq)
    else:
        assert facts(one(model, seq)) == facts(one(plain(), seq))
    let_go(model, seq)


def test_a_drafter_that_reads_hidden_states_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.drafters.ngram.NgramDrafter.needs", Needs(hidden_layers=(1,)))
    with pytest.raises(ConfigError, match="drafter: method 'ngram' reads hidden states"):
        drafter()


def test_an_inner_store_learns_what_the_target_made_of_the_text() -> None:
    model, seq = drafter("suffix tree"), sequence(tiny.tokens(20))
    model.begin(seq)
    follow(seq, one(model, seq, 5), 0, 3)
    model.release(seq)
    inner: Any = model.inner
    store = inner.method.drafter.store
    known: list[int] = list(store._shelves[""].index.tokens(store._shelves[""].index.origin, 1 << 30))
    assert known == seq.token_ids[1:]
