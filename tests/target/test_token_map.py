"""Vocabularies as bytes, and the maps between two of them."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import VocabularyError
from outrider.target.spelling import Spelling
from outrider.target.token_map import TextMap, TokenMap, match_vocabularies
from outrider.target.tokenizer import Tokenizer
from target.vocabularies import byte_level, drafts, sentencepiece, spelling, target

TOKENIZERS = {"target": target(), **drafts()}
SPELLINGS = {name: spelling(tokenizer, more=3) for name, tokenizer in TOKENIZERS.items()}
MAPS = {
    (kind.name, draft): kind(SPELLINGS["target"], SPELLINGS[draft])
    for kind in (TokenMap, TextMap)
    for draft in drafts()
}
kinds = pytest.mark.parametrize("kind", SPELLINGS)
maps = pytest.mark.parametrize("key", MAPS, ids="-".join)
pieces = st.sampled_from(["the", " the", " there", "ing", "abc", "\n", "\n\n", " ", "😀", "é", "<s>", " hi", "a"])
texts = st.lists(pieces | st.text(max_size=3), max_size=8).map("".join)
lefts = st.sampled_from([b"\n", b"a", b" the", b"\n\n", "é".encode(), b"", b"\xff"])
quick = settings(max_examples=150, deadline=None)


@kinds
@quick
@given(data=texts.map(str.encode) | st.binary(max_size=12), left=lefts)
def test_what_is_encoded_spells_the_same_bytes(kind: str, data: bytes, left: bytes) -> None:
    spelled = SPELLINGS[kind]
    ids = spelled.encode(data, left)
    assert b"".join(spelled.bytes_of[id_] for id_ in ids) == data
    assert all(id_ < len(spelled.bytes_of) for id_ in ids)


@kinds
@quick
@given(text=texts.filter(lambda text: text and "<" not in text))
def test_text_behind_a_line_break_is_what_the_tokenizer_writes(kind: str, text: str) -> None:
    spelled = SPELLINGS[kind]
    whole = spelled.tokenizer.encode("\n" + text, add_special_tokens=False)
    ids = spelled.encode(text.encode())
    assert ids == whole[len(whole) - len(ids) :] or text[0] == "\n"


def test_what_a_token_spells() -> None:
    for name, spelled in SPELLINGS.items():
        tokenizer = TOKENIZERS[name]
        assert spelled.id_of[b" hi"] == tokenizer.vocab["▁hi" if name == "sentencepiece" else "Ġhi"]
        assert spelled.id_of[b"a"] == tokenizer.vocab["a"]  # not <0x61>, which no text is encoded with
        assert not spelled.bytes_of[tokenizer.vocab["<s>"]]
        assert spelled.bytes_of[-3:] == [b""] * 3
        assert spelled.num_used == len(tokenizer)
        assert spelled.leading_space == (name == "sentencepiece")
        assert spelled.first(b" therefore") == spelled.id_of[b" the" if name == "target" else b" there"]
        assert spelled.first(b"") is None
    assert SPELLINGS["sentencepiece"].encode(b" hi") == [TOKENIZERS["sentencepiece"].vocab["▁hi"]]
    assert SPELLINGS["sentencepiece"].encode(b"\xf0\x9f") == [3 + 0xF0, 3 + 0x9F]


@maps
def test_the_intersection_is_one_to_one_and_spells_the_same(key: tuple[str, str]) -> None:
    token_map = MAPS[key]
    ours, theirs = token_map.target, token_map.draft
    assert {theirs_: ours_ for ours_, theirs_ in token_map.to_draft.items()} == token_map.to_target
    assert len(token_map.to_target) == len(token_map.to_draft)
    for id_, other in token_map.to_draft.items():
        assert ours.bytes_of[id_] == theirs.bytes_of[other]
    shared = set(ours.id_of) & set(theirs.id_of)
    assert len(token_map.to_draft) == len(shared) + 2
    assert token_map.to_draft[ours.tokenizer.vocab["<s>"]] == theirs.tokenizer.vocab["<s>"]
    assert token_map.to_draft[ours.tokenizer.vocab["</s>"]] == theirs.tokenizer.vocab["<end>"]  # by role
    for id_, other in token_map.alike.items():
        assert ours.bytes_of[id_] == theirs.bytes_of[other]


@maps
@quick
@given(seed=st.integers(0, 10**6))
def test_laws_survive_the_way_over_the_targets_vocabulary(key: tuple[str, str], seed: int) -> None:
    token_map = MAPS[key]
    row = 3.0 * torch.randn(len(token_map.draft.bytes_of), generator=torch.Generator().manual_seed(seed)).double()
    wide = token_map.widen(row)
    q = torch.softmax(token_map.narrow(wide, row, wide), 0)
    known = torch.zeros(len(row), dtype=torch.bool)
    for id_ in range(len(row)):
        known[id_] = id_ in token_map.to_target or (token_map.by_text and bool(token_map.draft.bytes_of[id_]))
    want = torch.where(known, row, -torch.inf).softmax(0)
    assert torch.allclose(q, want, atol=1e-12)
    p = torch.softmax(wide, 0)
    if token_map.by_text:
        sums = torch.zeros(len(p), dtype=torch.float64)
        for id_, chance in enumerate(want.tolist()):
            if chance:
                text = token_map.draft.bytes_of[id_]
                first = token_map.target.first(text) if text else token_map.to_target[id_]
                assert first is not None
                sums[first] += chance
        assert torch.allclose(p, sums, atol=1e-12)
    else:
        assert torch.allclose(p, token_map.over_target(want), atol=1e-12)


@maps
def test_the_draft_token_for_a_token_of_the_target(key: tuple[str, str]) -> None:
    token_map = MAPS[key]
    ours, theirs = token_map.target, token_map.draft
    row = torch.zeros(len(theirs.bytes_of))
    row[theirs.id_of[b" there"]] = 5.0
    for token in (ours.id_of[b" hi"], ours.tokenizer.vocab["</s>"]):
        assert token_map.spell(token_map.choose(token, row)) == [token]
    the = token_map.choose(ours.id_of[b" the"], row)
    assert theirs.bytes_of[the] == (b" there" if token_map.by_text else b" the")
    assert token_map.spell(the) == ours.encode(theirs.bytes_of[the])


def test_what_matches_when() -> None:
    ours = TOKENIZERS["target"]
    sizes = (len(ours), len(ours))
    for wish in ("auto", "same"):
        assert match_vocabularies(wish, ours, ours, sizes) is None  # type: ignore[arg-type]
    theirs = TOKENIZERS["sentencepiece"]
    sizes = (len(ours), len(theirs))
    with pytest.raises(VocabularyError, match="set vocabulary to 'tli' or 'slem'"):
        match_vocabularies("same", ours, theirs, sizes)
    for wish, kind in (("auto", TokenMap), ("tli", TokenMap), ("slem", TextMap)):
        assert type(match_vocabularies(wish, ours, theirs, sizes)) is kind  # type: ignore[arg-type]
    assert type(match_vocabularies("auto", ours, theirs, sizes, needs_laws=False)) is TextMap


def test_coverage_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = Tokenizer(byte_level((), list("abcd"))), Tokenizer(byte_level((), list("cdefgh")))
    with caplog.at_level(logging.INFO):
        token_map = match_vocabularies("tli", ours, theirs, (len(ours), len(theirs)))
    assert token_map is not None
    want = "4 tokens are in both vocabularies, 50% of the draft model's 8 and 67% of the target's 6"
    assert want in token_map.describe()
    assert want in caplog.text


def test_nothing_shared_is_refused() -> None:
    ours, theirs = Tokenizer(byte_level((), ["a"])), Tokenizer(byte_level((), ["b"]))
    with pytest.raises(VocabularyError, match="shares no token"):
        match_vocabularies("tli", ours, theirs, (3, 3))


def test_rows_beyond_the_model_are_no_tokens() -> None:
    tokenizer = Tokenizer(sentencepiece(()))
    size = tokenizer.vocab["m"]
    spelled = Spelling(tokenizer, size)
    assert spelled.encode(b"lm") == [tokenizer.vocab["l"], tokenizer.vocab["<0x6D>"]]
    assert len(spelled.bytes_of) == size
