"""Grammars: what they say about tokens depends on the tokens alone, wherever the matcher stood before."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from engine.tiny import tokenizer
from outrider.config import StructuredOutputs
from outrider.target.grammar import Grammar, Grammars
from outrider.target.tokenizer import Tokenizer

WORDS = Tokenizer(tokenizer())
SIZE = len(WORDS) + 3  # rows of logits are wider than the vocabulary
GRAMMARS = Grammars(WORDS, SIZE)
PATTERN = "(ab|cd){1,3}( of)?"
TEXTS = [text for text in ("ab", "abcd", "ababab", "cd of", "abcdab of", "ab o", "") for _ in range(2)]


def grammar(**wanted: object) -> Grammar:
    """A fresh constraint."""
    return GRAMMARS.constraint(StructuredOutputs(**wanted))


def state(constraint: Grammar, tokens: list[int]) -> tuple[object, ...]:
    """All that can be asked about ``tokens``."""
    allowed = constraint.allowed(tokens)
    return (
        None if allowed is None else allowed.nonzero().flatten().tolist(),
        constraint.accepts(tokens),
        list(constraint.forced(tokens)),
        constraint.complete(tokens),
    )


ids = st.lists(
    st.one_of(st.sampled_from(TEXTS).map(WORDS.encode), st.lists(st.integers(0, len(WORDS) - 1), max_size=3)),
    max_size=3,
).map(lambda parts: [token for part in parts for token in part])


@given(st.lists(ids, min_size=1, max_size=6))
def test_the_answer_depends_on_the_tokens_alone(asked: list[list[int]]) -> None:
    used = grammar(regex=PATTERN)
    for tokens in asked:
        assert state(used, tokens) == state(grammar(regex=PATTERN), tokens)


@given(ids)
def test_what_is_allowed_is_what_is_accepted(tokens: list[int]) -> None:
    constraint = grammar(regex=PATTERN)
    allowed = constraint.allowed(tokens)
    assert (allowed is not None) == constraint.accepts(tokens)
    if allowed is None:
        return
    assert allowed.shape == (SIZE,)
    text = WORDS.decode(tokens)
    if not constraint.complete(tokens) and WORDS.eos_id not in tokens:
        assert bool(allowed[WORDS.eos_id]) == (re.fullmatch(PATTERN, text) is not None)
        for token in range(2, SIZE):
            assert bool(allowed[token]) == constraint.accepts([*tokens, token])


def test_names_are_forced_and_spaced_as_json_dumps_does_it() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": [2, 3]}}, "required": ["a", "b"]}
    constraint = grammar(json={**schema, "additionalProperties": False})
    forced = list(constraint.forced([]))
    assert WORDS.decode(forced) == json.dumps({"a": 1, "b": [2, 3]})
    assert constraint.complete(forced)
    assert not constraint.complete(forced[:-1])


def test_other_spacing_is_a_pattern() -> None:
    constraint = grammar(json={"enum": [[1, 2]]}, whitespace_pattern=" *")
    for text, right in (("[1,2]", True), ("[ 1, 2]", True), ("[1,x2]", False)):
        assert constraint.accepts(WORDS.encode(text)) == right


def test_gbnf_is_read_too() -> None:
    constraint = grammar(grammar='root ::= "ab" [0-9]+')
    assert constraint.accepts(WORDS.encode("ab42"))
    assert not constraint.accepts(WORDS.encode("abx"))


def test_behind_a_marker_that_is_a_token_of_its_own() -> None:
    constraint = grammar(choice=["ab"], after="<s>")
    begin = WORDS.vocab["<s>"]
    assert constraint.accepts([*WORDS.encode("of <the", add_special_tokens=False), begin])
    assert constraint.complete([*WORDS.encode("of <the", add_special_tokens=False), begin, *WORDS.encode("ab")])
    assert not constraint.accepts([begin, *WORDS.encode("of")])
    assert constraint.accepts(WORDS.encode("of"))


def test_behind_a_marker_that_was_added_as_a_word() -> None:
    backend = tokenizer()
    backend.add_tokens([AddedToken("</think>", special=False, normalized=False)])
    words = Tokenizer(backend)
    constraint = Grammars(words, len(words)).constraint(StructuredOutputs(regex="x+", after="</think>"))
    end = words.vocab["</think>"]
    allowed = constraint.allowed(words.encode("ab"))
    assert allowed is not None
    assert allowed[end]
    assert constraint.accepts([*words.encode("ab"), end, *words.encode("xx")])
    assert not constraint.accepts([*words.encode("ab"), end, *words.encode("y")])


@pytest.mark.parametrize("marker", ["</think>", 'a/b "c"'])
def test_behind_a_marker_that_is_text(marker: str) -> None:
    constraint = grammar(regex="x+", after=marker)
    assert constraint.accepts(WORDS.encode(f"ab {marker}xx"))
    assert not constraint.accepts(WORDS.encode(f"ab {marker}y"))
