"""Tokenizers: streams equal decoding, bytes of tokens, chat templates, vocabularies, SmolLM2's digits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from outrider.errors import ModelError, RequestError, VocabularyError
from outrider.target import gguf, known
from outrider.target.tokenizer import Tokenizer
from outrider.target.vocab import compare_vocabularies

SPECIALS = ["<s>", "</s>"]
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"
)


def wrap(backend: Backend, template: str | None = TEMPLATE) -> Tokenizer:
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=template)
    return Tokenizer(hf, eos_ids=[0])


@cache
def byte_level() -> Tokenizer:
    """GPT-2's kind: every byte is a token, and so are a word and two pieces of an emoji."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    half = [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("😀")[0][0][i]
        for i in range(4)
    ]
    tokens = [*SPECIALS, *alphabet, "Ġhi", half[0] + half[1], half[2] + half[3]]
    backend = Backend(models.BPE(vocab={text: id_ for id_, text in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return wrap(backend)


@cache
def byte_fallback() -> Tokenizer:
    """Llama 2's kind: a space is ``▁``, a leading one is stripped, unknown characters are byte tokens."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*SPECIALS, "<unk>", *bytes_, "▁", "▁hi", "a", "b", "é", "▁😀"]
    vocab = {text: id_ for id_, text in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrap(backend)


KINDS = pytest.mark.parametrize("make", [byte_level, byte_fallback])


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids, a few of them unused, often with whole characters spelled in single bytes."""
    spelled = st.sampled_from(["😀", "é", "\n", "a hi", "€"]).map(lambda text: spell(tokenizer, text))
    noise = st.integers(0, len(tokenizer) + 9).map(lambda id_: [id_])
    return st.lists(spelled | noise, max_size=12).map(lambda parts: [id_ for part in parts for id_ in part])


def spell(tokenizer: Tokenizer, text: str) -> list[int]:
    single = {tokenizer.token_bytes(id_): id_ for id_ in range(len(tokenizer) - 1, -1, -1)}
    return [single[bytes([byte])] for byte in text.encode()]


def streamed(tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = (), *, skip: bool = True) -> list[str]:
    stream = tokenizer.stream(prompt, skip_special_tokens=skip)
    return [*(stream.push(id_) for id_ in ids), stream.flush()]


@KINDS
@settings(deadline=None, max_examples=300)
@given(data=st.data(), skip=st.booleans())
def test_a_stream_equals_decoding_everything(make: object, data: st.DataObject, skip: bool) -> None:
    tokenizer = make()  # type: ignore[operator]
    ids = data.draw(ids_of(tokenizer))
    assert "".join(streamed(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@KINDS
@settings(deadline=None, max_examples=200)
@given(data=st.data(), skip=st.booleans())
def test_a_stream_after_a_prompt_continues_its_text(make: object, data: st.DataObject, skip: bool) -> None:
    tokenizer = make()  # type: ignore[operator]
    prompt = spell(tokenizer, data.draw(st.sampled_from(["a", "hi 😀", "b\n", "é"])))
    prompt += [tokenizer.vocab["a"], *data.draw(st.lists(st.sampled_from([0, 1]), max_size=2))]
    ids = data.draw(ids_of(tokenizer))
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    want = tokenizer.decode(prompt + ids, skip_special_tokens=skip).removeprefix(before)
    assert "".join(streamed(tokenizer, ids, prompt, skip=skip)) == want


def test_text_appears_as_soon_as_it_is_certain() -> None:
    tokenizer = byte_level()
    first, second = len(tokenizer) - 2, len(tokenizer) - 1  # the emoji's halves
    assert streamed(tokenizer, [tokenizer.vocab["Ġhi"], first, second, tokenizer.vocab["a"]]) == [
        " hi",
        "",
        "😀",
        "a",
        "",
    ]
    assert streamed(tokenizer, [first]) == ["", "\N{REPLACEMENT CHARACTER}"]
    sentencepiece = byte_fallback()
    newline = sentencepiece.vocab["<0x0A>"]
    assert streamed(sentencepiece, [newline, sentencepiece.vocab["▁hi"]]) == ["", "\n hi", ""]


def test_a_leading_space_is_stripped_only_at_the_start() -> None:
    tokenizer = byte_fallback()
    hi = tokenizer.vocab["▁hi"]
    assert streamed(tokenizer, [hi, hi]) == ["hi", " hi", ""]
    assert streamed(tokenizer, [0, hi, 1, hi]) == ["", "hi", "", " hi", ""]
    assert streamed(tokenizer, [hi], [hi]) == [" hi", ""]
    assert streamed(tokenizer, [hi, len(tokenizer) + 5, hi]) == ["hi", "", " hi", ""]


@KINDS
@given(text=st.text(max_size=8))
@settings(deadline=None, max_examples=100)
def test_the_bytes_of_tokens_are_the_bytes_of_the_text(make: object, text: str) -> None:
    tokenizer = make()  # type: ignore[operator]
    if tokenizer is byte_fallback():
        text = text.replace(" ", "")  # this fake has no rule that turns a space into ▁
    if "<" in text or "▁" in text:
        return
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_token_text() -> None:
    tokenizer = byte_level()
    assert tokenizer.token_text(tokenizer.vocab["Ġhi"]) == " hi"
    assert tokenizer.token_text(0) == "<s>"
    assert tokenizer.token_text(len(tokenizer) - 1) == "\N{REPLACEMENT CHARACTER}" * 2
    assert byte_fallback().token_text(byte_fallback().vocab["▁hi"]) == " hi"
    assert tokenizer.token_bytes(10**6) == b""


def test_special_and_end_ids() -> None:
    tokenizer = byte_level()
    assert tokenizer.eos_ids == {0, 1}
    assert tokenizer.special_ids == {0, 1}
    assert tokenizer.bos_id == 0
    assert tokenizer.decode([0, tokenizer.vocab["a"], 1]) == "a"
    assert tokenizer.decode([0, tokenizer.vocab["a"], 1], skip_special_tokens=False) == "<s>a</s>"


def test_chat() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>user: hi</s><s>"
    ids = tokenizer.encode_chat([{"role": "user", "content": "hi"}], add_generation_prompt=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>user: hi</s>"
    with pytest.raises(RequestError, match="no tools"):
        tokenizer.encode_chat([{"role": "tool", "content": "hi"}])
    plain = wrap(Backend(models.BPE(vocab={"a": 0}, merges=[])), template=None)
    with pytest.raises(ModelError, match="no chat template"):
        plain.encode_chat([{"role": "user", "content": "hi"}])


def test_a_folder_without_tokenizer_is_refused(tmp_path: object) -> None:
    with pytest.raises(ModelError, match="no tokenizer"):
        Tokenizer.load(str(tmp_path))


def words(*tokens: str) -> Tokenizer:
    return wrap(Backend(models.BPE(vocab={text: id_ for id_, text in enumerate(tokens)}, merges=[])))


def test_equal_vocabularies_and_padding_pass() -> None:
    target = words("a", "b", "<s>", "</s>")
    compare_vocabularies(target, words("a", "b", "<s>", "</s>"))
    compare_vocabularies(target, words("a", "b", "<s>", "</s>", "[PAD4]", "<|reserved_special_token_1|>"))
    compare_vocabularies(words("a", "b", "<s>", "</s>", "<unused0>"), target)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (("b", "a", "<s>", "</s>"), r"2 ids differ, 0 of them special \(target / draft: 0: 'a' / 'b', 1: 'b' / 'a'\)"),
        (("a", "b", "</s>", "<s>"), r"2 ids differ, 2 of them special \(target / draft: 2: '<s>' / '</s>'"),
        (("a", "b", "<s>", "</s>", "c"), r"\(5 tokens\) is not the target's \(4\): 1 ids differ.*4: none / 'c'"),
        (("a", "[PAD1]", "<s>", "</s>"), r"1 ids differ.*1: 'b' / none"),
    ],
)
def test_other_vocabularies_are_refused(other: tuple[str, ...], message: str) -> None:
    target = words("a", "b", "<s>", "</s>")
    with pytest.raises(VocabularyError, match=message):
        compare_vocabularies(target, words(*other))


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return Tokenizer.load(str(gguf.converted_folder(known.get("smollm2-135m"))))


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("12345", ["1", "2", "3", "4", "5"]),
        ("In 1969,", ["In", " ", "1", "9", "6", "9", ","]),
        ("x² + y² = ½", ["x", "²", " +", " y", "²", " =", " ", "½"]),
        ("3.14", ["3", ".", "1", "4"]),
        ("Let's go", ["Let", "'s", " go"]),
    ],
)
def test_smollm2_splits_digits(smollm: Tokenizer, text: str, pieces: list[str]) -> None:
    ids = smollm.encode(text)
    assert [smollm.token_text(id_) for id_ in ids] == pieces
    assert smollm.decode(ids) == text


@pytest.mark.real_model
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_smollm2_streams_what_it_decodes(smollm: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(smollm) - 1) | st.integers(0, 400), max_size=20))
    ids += smollm.encode(data.draw(st.text(max_size=10)))
    assert "".join(streamed(smollm, ids)) == smollm.decode(ids)


@pytest.mark.real_model
def test_smollm2_chat(smollm: Tokenizer) -> None:
    text = smollm.render_chat([{"role": "user", "content": "Hi"}])
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert 2 in smollm.eos_ids
    compare_vocabularies(smollm, smollm)
