"""Where a text ends: stop tokens, stop strings, EOS, length and context, at every place of an accepted run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tiny import CONTEXT, DRAFT_CONTEXT, VARIANTS, Models, consistent, idle, ids, same, tokenizer
from outrider import LLM, SamplingParams
from outrider.engine.text import OutputText
from outrider.outputs import CompletionOutput
from outrider.target.tokenizer import Tokenizer

K = 6
PROMPT = ids(21, seed=8)
RIGHT = {"method": "synthetic", "synthetic_acceptance_rates": [1.0] * K, "num_speculative_tokens": K}
places = pytest.mark.parametrize("place", range(1, 2 * K + 4))  # the first token is plain, then runs of K + 1 follow


def whole(models: Models, **changes: Any) -> CompletionOutput:
    """The plain text without a stop."""
    params = SamplingParams(max_tokens=32, temperature=1.0, seed=6, ignore_eos=True, **changes)
    return models.plain(PROMPT, params).outputs[0]


def both(models: Models, place_of: CompletionOutput, **changes: Any) -> CompletionOutput:
    """The answer with stops, where every draft is right; equal to plain decoding, streamed or not."""
    params = SamplingParams(
        **{"max_tokens": 32, "temperature": 1.0, "seed": 6, "ignore_eos": True, "logprobs": 1, **changes},
        prediction=place_of.token_ids,
    )
    llm = models.llm(RIGHT)
    want = models.plain(PROMPT, params).outputs[0]
    output = llm.generate(PROMPT, params)[0]
    same(output.outputs[0], want)
    consistent(output)
    streamed(llm, params, want)
    idle(llm)
    return output.outputs[0]


def streamed(llm: LLM, params: SamplingParams, want: CompletionOutput) -> None:
    chunks = list(llm.stream(PROMPT, params))
    assert "".join(chunk.text for chunk in chunks) == want.text
    assert [token for chunk in chunks for token in chunk.token_ids] == want.token_ids
    assert llm.last_output is not None
    same(llm.last_output.outputs[0], want)
    drafted = [flag for chunk in chunks for flag in chunk.from_draft]
    assert drafted == llm.last_output.outputs[0].from_draft
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [want.finish_reason]


def test_the_runs_are_as_long_as_they_can_be(models: Models) -> None:
    text = whole(models)
    flags = both(models, text).from_draft
    assert flags[:16] == [False, *[True] * K, False, *[True] * K, False, True]
    assert len(set(text.token_ids[: 2 * K + 4])) > K  # few repeats, so that stops hit where they are meant to


@places
def test_stop_tokens(models: Models, place: int) -> None:
    text = whole(models)
    token = text.token_ids[place]
    answer = both(models, text, stop_token_ids=[token])
    first = text.token_ids.index(token)
    assert answer.token_ids == text.token_ids[: first + 1]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", token)


@contextmanager
def eos(models: Models, token: int) -> Iterator[None]:
    """Let ``token`` be the end of a text for all engines."""
    llms = [models.llm(RIGHT), models.llm(None, max_num_seqs=1, enable_prefix_caching=False)]
    before = [llm.get_tokenizer().eos_ids for llm in llms]
    for llm in llms:
        llm.get_tokenizer().eos_ids = frozenset({token})
    try:
        yield
    finally:
        for llm, ids_ in zip(llms, before, strict=True):
            llm.get_tokenizer().eos_ids = ids_


@places
def test_eos(models: Models, place: int) -> None:
    text = whole(models)
    token = text.token_ids[place]
    with eos(models, token):
        answer = both(models, text, ignore_eos=False)
        assert answer.token_ids == text.token_ids[: text.token_ids.index(token) + 1]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
        assert both(models, text, ignore_eos=True).token_ids == text.token_ids


@places
@pytest.mark.parametrize("included", [True, False])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_stop_strings(models: Models, place: int, length: int, included: bool) -> None:
    text = whole(models)
    words = models.llm(RIGHT).get_tokenizer()
    start = len(words.decode(text.token_ids[:place]))
    stop = text.text[start : start + length]
    answer = both(models, text, stop=["never there", stop], include_stop_str_in_output=included)
    at = text.text.index(stop)
    assert answer.text == text.text[: at + len(stop) if included else at]
    assert answer.stop_reason == stop
    assert len(answer.token_ids) == len(answer.from_draft)


@places
def test_lengths(models: Models, place: int) -> None:
    text = whole(models)
    answer = both(models, text, max_tokens=place)
    assert answer.token_ids == text.token_ids[:place]
    assert answer.finish_reason == "length"


@places
def test_min_tokens_put_a_stop_off(models: Models, place: int) -> None:
    text = whole(models)
    stop = text.text[2:4]
    answer = both(models, text, stop=stop, min_tokens=place, max_tokens=24)
    assert len(answer.token_ids) >= place
    with eos(models, text.token_ids[2]):
        answer = both(models, text, ignore_eos=False, min_tokens=place, max_tokens=24)
        assert text.token_ids[2] not in answer.token_ids[: place - 1]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("context", [CONTEXT, DRAFT_CONTEXT])
def test_contexts_of_target_and_draft(models: Models, variant: str, context: int) -> None:
    llm = models.llm(VARIANTS[variant] | {"num_speculative_tokens": 4})
    asked = [ids(length, seed=length, period=7) for length in range(context - 7, context)]
    params = SamplingParams(max_tokens=12, temperature=0.0, logprobs=1, ignore_eos=True)
    plain = [models.plain(prompt, params).outputs[0] for prompt in asked]
    predictions = [params.model_copy(update={"prediction": answer.token_ids}) for answer in plain]
    for prompt, output, want in zip(asked, llm.generate(asked, predictions), plain, strict=True):
        same(output.outputs[0], want)
        assert len(prompt) + len(want.token_ids) == min(CONTEXT, len(prompt) + 12)
        consistent(output)
    idle(llm)


@pytest.mark.parametrize("left", [1, 2, 3, 4])
def test_a_slim_tree_is_no_deeper_than_there_are_tokens_left(models: Models, left: int) -> None:
    llm = models.llm({"method": "draft_model", "model": "long draft", "tree": [3, 2, 1]})
    prompt = ids(CONTEXT - left)
    params = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True, allowed_token_ids=[5], logprobs=1)
    same(llm.generate(prompt, params)[0].outputs[0], models.plain(prompt, params).outputs[0])
    idle(llm)


def test_without_detokenising_there_is_no_text(models: Models) -> None:
    params = SamplingParams(max_tokens=5, temperature=0.0, detokenize=False)
    answer = models.llm(RIGHT).generate(PROMPT, params)[0].outputs[0]
    assert answer.text == ""
    assert len(answer.token_ids) == 5


WORDS = Tokenizer(tokenizer(), eos_ids=[1])
pieces = st.lists(st.integers(0, len(WORDS) - 1), max_size=20)


@settings(deadline=None, max_examples=200)
@given(tokens=pieces, stops=st.lists(st.sampled_from(["a", "ab", "abc", "the", "he", " "]), max_size=3), data=st.data())
def test_what_is_released_is_never_taken_back(tokens: list[int], stops: list[str], data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.sampled_from([*tokens, *WORDS.encode("abc the"), WORDS.vocab["abc"]]), max_size=25))
    text = OutputText(WORDS, [], stops, include_stop=data.draw(st.booleans()))
    shown, found = "", None
    for token in tokens:
        found = text.push(token)
        shown += text.released()
        assert text.text.startswith(shown)
        if found is not None:
            break
    text.finish()
    assert shown + text.released() == text.text
    full = WORDS.decode(tokens)
    if found is None:
        assert text.text == full
        assert "\ufffd" in full or not any(stop in full for stop in stops)
    else:
        assert full.startswith(text.text)
        assert text.text.endswith(found) or full[len(text.text) :].startswith(found)
        kept = text.text.removesuffix(found)
        assert not any(stop in kept for stop in stops)


def test_a_stop_string_passed_by_is_not_found_again() -> None:
    text = OutputText(WORDS, [], ["ab", "long enough to look far back"])
    assert text.push(WORDS.vocab["ab"], stoppable=False) is None
    assert text.push(WORDS.vocab["x"]) is None
    assert text.push(WORDS.vocab["ab"]) == "ab"
    assert text.text == "abx"
