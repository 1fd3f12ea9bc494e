"""Model drafters with another vocabulary: transcripts and proposals depend on the target's tokens alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.fakes import FakeSequence, keyed
from outrider.core.draft import Draft, Iid
from outrider.drafters.base import Committed
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.transcript import Transcript
from outrider.drafters.translate import Translated
from outrider.drafters.trees import Paths, Shape, Widths
from outrider.engine.laws import FreshNoise, SharedNoise
from outrider.target.token_map import TextMap, TokenMap
from target import tiny, vocabularies
from target.vocabularies import spelling

OURS = spelling(vocabularies.target(), more=4)
VOCAB = len(OURS.bytes_of)
THEIRS = {name: spelling(tokenizer, more=2) for name, tokenizer in vocabularies.drafts().items()}
MODELS = {
    name: tiny.target_of(tiny.reference("llama", vocab_size=len(theirs.bytes_of))) for name, theirs in THEIRS.items()
}
CONTEXT = tiny.SMALL["max_position_embeddings"]
MAPS = {(kind.name, name): kind(OURS, theirs) for kind in (TokenMap, TextMap) for name, theirs in THEIRS.items()}
SHAPES: dict[str, Shape] = {"chain": Paths(), "tree": Widths([3, 2, 1]), "paths": Paths(3)}
keys = pytest.mark.parametrize("key", MAPS, ids="-".join)
shapes = pytest.mark.parametrize("shape", SHAPES)
temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])
words = (
    st.sampled_from([" the", " there", "ing", "abc", " hi", "\n\n", "😀", ".", "x"]).map(str.encode).map(OURS.encode)
)
tokens = st.integers(0, VOCAB - 1).map(lambda token: [token])
texts = st.lists(words | words | tokens, min_size=1, max_size=30).map(lambda parts: [t for part in parts for t in part])
quick = settings(max_examples=20, deadline=None)


@pytest.fixture(autouse=True)
def flat_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.drafters.draft_model.curve_of", lambda model: lambda rows: 0.001)


def drafter(key: tuple[str, str], shape: str = "chain", cache_tokens: int = 2048) -> Translated:
    model = MODELS[key[1]]
    return Translated(DraftModel(model, SHAPES[shape], model.vocab_size, cache_tokens), MAPS[key])


def sequence(text: Sequence[int], seq_id: int = 0, temperature: float = 1.0, **settings_: Any) -> FakeSequence:
    return keyed(text, VOCAB, seq_id, temperature, **settings_)


def one(model: Translated, seq: FakeSequence, budget: int = 6, noise: Any = None) -> Draft:
    (draft,) = model.propose([seq], [budget], noise or SharedNoise())
    draft.check(VOCAB, budget)
    assert all(0.0 <= score <= 1.0 for score in draft.scores or ())
    for siblings in draft.children():
        assert not draft.all_delta or len({draft.tokens[node] for node in siblings}) == len(siblings)
    return draft


def facts(draft: Draft) -> tuple[Any, ...]:
    parents = [draft.parent(node) for node in range(len(draft))]
    laws = None if draft.laws is None else [law.q.tolist() for law in draft.laws if isinstance(law, Iid)]
    return list(draft.tokens), parents, draft.scores, draft.multiplicity, laws


@keys
@quick
@given(text=texts, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_a_transcript_depends_on_the_tokens_alone(key: tuple[str, str], text: list[int], cuts: list[int]) -> None:
    once, often = Transcript(MAPS[key]), Transcript(MAPS[key])
    once.follow(text, 0)
    known: list[int] = []
    for cut in (*cuts, len(text)):
        before, now = list(often.ids), text[:cut]
        same = often.follow(now, min(len(known), len(now)))
        assert often.ids[:same] == before[:same]
        assert same == len(before) or same == len(often.ids) or before[same] != often.ids[same]
        known = now
    assert often.ids == once.ids


@keys
@quick
@given(text=texts)
def test_a_transcript_spells_the_text(key: tuple[str, str], text: list[int]) -> None:
    token_map = MAPS[key]
    transcript = Transcript(token_map)
    transcript.follow(text, 0)
    theirs = token_map.draft
    spelled = b"".join(theirs.bytes_of[id_] for id_ in transcript.ids)
    want = b"".join(OURS.bytes_of[id_] for id_ in text)
    begins = not any(not OURS.bytes_of[id_] for id_ in text[:2]) or text[0] == 0
    assert spelled in (want, b" " + want) or not begins
    assert spelled.endswith(want) or spelled == want
    specials = [token_map.to_draft[id_] for id_ in text if id_ < 2]
    assert [id_ for id_ in transcript.ids if not theirs.bytes_of[id_]] == specials


@keys
@pytest.mark.parametrize("noise", [SharedNoise(), FreshNoise(), FreshNoise(merge_paths=True)])
@shapes
@temperatures
@settings(max_examples=5, deadline=None)
@given(text=texts, budget=st.integers(0, 12))
def test_two_proposals_are_equal_and_keep_to_the_budget(
    key: tuple[str, str], noise: Any, shape: str, temperature: float, text: list[int], budget: int
) -> None:
    model, seq = drafter(key, shape), sequence(text, temperature=temperature)
    model.begin(seq)
    first = one(model, seq, budget, noise)
    assert facts(first) == facts(one(model, seq, budget, noise))
    if key[0] == "tli":
        assert bool(len(first)) == (budget > 0 and bool(model._mirrors[0].token_ids))
        assert (first.laws is None) == (noise.shared or not len(first))
    else:
        assert first.all_delta


@keys
@shapes
@temperatures
@settings(max_examples=8, deadline=None)
@given(text=texts, sizes=st.lists(st.tuples(texts, st.booleans()), max_size=5), budget=st.integers(1, 9))
def test_begin_and_observe_equal_begin_on_the_longer_text(
    key: tuple[str, str], shape: str, temperature: float, text: list[int], sizes: Any, budget: int
) -> None:
    model, seq = drafter(key, shape), sequence(text, temperature=temperature)
    model.begin(seq)
    for new, follows in sizes:
        draft = one(model, seq, budget)
        new = new[:5]
        if follows and len(draft):  # the longest path was accepted, and one token more
            deepest = max(range(len(draft)), key=lambda node: len(draft.path(node)))
            new = [*(draft.tokens[node] for node in draft.path(deepest)), new[0]]
        seq.token_ids = [*seq.token_ids, *new]
        model.observe(seq, Committed(new))
        fresh = drafter(key, shape)
        fresh.begin(seq)
        assert facts(one(model, seq, budget)) == facts(one(fresh, seq, budget))


@keys
@shapes
@settings(max_examples=6, deadline=None)
@given(text=texts, more=texts, cut=st.integers(1, 200))
def test_truncate_undoes_observe(key: tuple[str, str], shape: str, text: list[int], more: list[int], cut: int) -> None:
    model, seq = drafter(key, shape), sequence(text)
    model.begin(seq)
    one(model, seq)
    seq.token_ids = [*text, *more]
    model.observe(seq, Committed(more))
    one(model, seq)
    seq.token_ids = seq.token_ids[: max(1, min(cut, len(seq.token_ids)))]
    model.truncate(seq, len(seq.token_ids))
    fresh = drafter(key, shape)
    fresh.begin(seq)
    assert facts(one(model, seq)) == facts(one(fresh, seq))
    model.release(seq)
    assert model.inner.pool.num_free == model.inner.pool.num_blocks  # type: ignore[attr-defined]


@keys
@shapes
@settings(max_examples=4, deadline=None)
@given(batch=st.lists(texts, min_size=2, max_size=4))
def test_a_ragged_batch_equals_each_alone(key: tuple[str, str], shape: str, batch: list[list[int]]) -> None:
    together = drafter(key, shape)
    seqs = [sequence(text, seq_id=index) for index, text in enumerate(batch)]
    for seq in seqs:
        together.begin(seq)
    budgets = [2 + 3 * index for index in range(len(seqs))]
    for seq, budget, draft in zip(seqs, budgets, together.propose(seqs, budgets, SharedNoise()), strict=True):
        assert facts(draft) == facts(one(drafter(key, shape), seq, budget))


@keys
@pytest.mark.parametrize("more", range(-2, 4))
def test_the_drafts_own_context_is_never_exceeded(key: tuple[str, str], more: int) -> None:
    text = [OURS.id_of[b"x"]] * (CONTEXT - THEIRS[key[1]].leading_space + more)
    model, seq = drafter(key), sequence(text)
    model.begin(seq)
    assert len(model._mirror(seq).token_ids) == CONTEXT + more
    assert bool(len(one(model, seq, 15))) == (more <= 0)


def test_laws_are_restricted_to_the_intersection_and_processed_over_the_targets_ids() -> None:
    for key, token_map in MAPS.items():
        if token_map.by_text:
            continue
        allowed = [*list(token_map.to_draft)[:40], OURS.id_of[b" the"]]
        seq = sequence(OURS.encode(b"hi there"), temperature=0.7, top_k=4, allowed_token_ids=allowed)
        draft = one(drafter(key, "paths"), seq, 6, FreshNoise())
        assert draft.laws is not None
        for node, law in enumerate(draft.laws):
            assert isinstance(law, Iid)
            assert law.q.shape == (VOCAB,)
            assert float(law.q.sum()) == pytest.approx(1.0)
            support = law.q.nonzero().flatten().tolist()
            assert len(support) == 4
            assert set(support) <= set(allowed)
            assert draft.scores is not None
            assert draft.scores[node] == pytest.approx(float(law.q[draft.tokens[node]]))


def test_a_node_where_nothing_shared_is_allowed_has_no_children() -> None:
    key = ("tli", "byte-level")
    (lone,) = [id_ for text, id_ in OURS.id_of.items() if text == b"\n\n"]
    assert lone not in MAPS[key].to_draft
    for noise in (SharedNoise(), FreshNoise()):
        assert not len(one(drafter(key), sequence([5, 6], allowed_token_ids=[lone]), 4, noise))


def test_noise_is_a_function_of_the_targets_token() -> None:
    """A draft model that knows nothing proposes what the noise alone favours among the shared tokens."""
    key = ("tli", "byte-level")
    seq, model = sequence(OURS.encode(b" hi there")), drafter(key)
    inner: Any = model.inner
    inner._forward = lambda states, spans: torch.zeros(1, MODELS[key[1]].vocab_size)
    flat = torch.full((VOCAB,), -torch.inf)
    flat[torch.tensor(list(MAPS[key].to_draft))] = 0.0
    want = [SharedNoise().candidates(seq, flat, len(seq.token_ids) + depth, 1)[0] for depth in range(4)]
    assert list(one(model, seq, 4).tokens) == want


def scripted(model: Translated, texts_: Sequence[bytes]) -> None:
    """The draft model writes the tokens of ``texts_``, whatever it reads."""
    inner: Any = model.inner
    theirs = model.token_map.draft
    script = iter([theirs.id_of[text] for text in texts_])

    def forward(states: Any, spans: Any) -> torch.Tensor:
        row = torch.zeros(1, len(theirs.bytes_of))
        row[0, next(script)] = 50.0
        return row

    inner._forward = forward


@pytest.mark.parametrize(
    ("context", "writes", "want"),
    [
        (b"oh", [b" there", b" hi"], [b" the", b"r", b"e", b" hi"]),
        (b"oh", [b" there", b" t"], [b" the", b"r", b"e", b" ", b"t"]),
        (b"a", [b"b", b"c"], [b"b", b"c"]),  # the target would have written ``ab``, had it not written ``a`` already
        (b"x\n", [b"\n", b"x"], [b"\n", b"x"]),
        (b"x", ["😀".encode(), b"x"], [b"\xf0\x9f", b"\x98", b"\x80", b"x"]),
        (b"x", [b"x", b"\xf0", b"\x9f"], [b"x"]),  # half a character waits for the rest
        (b"\xf0", [b"\x9f", b"\x98", b"\x80", b"x"], [b"\x9f", b"\x98", b"\x80", b"x"]),
    ],
)
def test_texts_are_tokenised_behind_the_root(context: bytes, writes: list[bytes], want: list[bytes]) -> None:
    model = drafter(("slem", "byte-level"))
    seq = sequence(OURS.encode(context), temperature=0.0)
    scripted(model, writes)
    (draft,) = model.propose([seq], [len(writes)], SharedNoise())
    assert [OURS.bytes_of[token] for token in draft.tokens] == want[: len(writes)]


@pytest.mark.parametrize(("accepted", "kept"), [(2, 0), (3, 1), (4, 2)])  # `` there`` is three tokens of the target
def test_what_stays_computed_is_what_was_accepted_as_text(accepted: int, kept: int) -> None:
    model = drafter(("slem", "byte-level"))
    seq = sequence(OURS.encode(b"oh"), temperature=0.0)
    model.begin(seq)
    scripted(model, [b" there", b" hi", b"x", b"y"])
    (draft,) = model.propose([seq], [4], SharedNoise())
    inner: Any = model.inner
    table = inner._states[seq.seq_id].table
    assert table.length == 2
    assert [OURS.bytes_of[token] for token in draft.tokens] == [b" the", b"r", b"e", b" hi"]
    new = [*draft.tokens[:accepted], OURS.id_of[b"!"]]
    seq.token_ids = [*seq.token_ids, *new]
    model.observe(seq, Committed(new))
    assert table.length == 2 + kept


def test_the_text_before_the_root_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    model, lefts = drafter(("slem", "byte-level")), []
    encode = OURS.encode
    monkeypatch.setattr(OURS, "encode", lambda data, left=b"\n": lefts.append(left) or encode(data, left))
    seq = sequence([*encode("é the hi".encode())][1:], temperature=0.0)  # the first token is half a character
    scripted(model, [b"x"])
    model.propose([seq], [1], SharedNoise())
    assert lefts == [b" the hi"]


@keys
def test_the_path_counts_as_history(key: tuple[str, str]) -> None:
    """A draft model that always writes the same is stopped by the penalty that the target's law will have."""
    model = drafter(key)
    theirs = model.token_map.draft
    inner: Any = model.inner
    row = torch.full((1, len(theirs.bytes_of)), -20.0)
    row[0, theirs.id_of[b"x"]], row[0, theirs.id_of[b" hi"]] = 1.0, 0.0
    inner._forward = lambda states, spans: row
    seq = sequence(OURS.encode(b"a"), temperature=0.0, frequency_penalty=0.6)
    (draft,) = model.propose([seq], [4], SharedNoise())
    assert [OURS.bytes_of[token] for token in draft.tokens] == [b"x", b"x", b" hi", b"x"]
