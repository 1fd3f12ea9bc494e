"""Structured outputs: JSON schemas, regular expressions, choices and grammars, over a tokenizer (by llguidance)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from outrider.config import StructuredOutputs
from outrider.errors import GrammarError, RequestError
from outrider.target.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

_CACHED = 64  # compiled grammars that are kept
_ANY_OBJECT = {"type": "object"}
_SPACING: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}  # as json.dumps writes


class Grammar:
    """Implements ``Constraint`` for one sequence. It stands behind some tokens and moves, forwards or back, to those
    that it is asked about."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self._tokens: list[int] = []  # that the matcher stands behind

    def allowed(self, tokens: Sequence[int]) -> Tensor | None:
        """As in ``Constraint``."""
        if not self._move(tokens):
            return None
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        return torch.from_numpy(np.unpackbits(bits, count=self._vocab_size, bitorder="little")).bool()

    def accepts(self, tokens: Sequence[int]) -> bool:
        """As in ``Constraint``."""
        return self._move(tokens)

    def forced(self, tokens: Sequence[int]) -> Sequence[int]:
        """As in ``Constraint``."""
        return self._matcher.compute_ff_tokens() if self._move(tokens) else ()

    def complete(self, tokens: Sequence[int]) -> bool:
        """As in ``Constraint``."""
        return self._move(tokens) and self._matcher.is_stopped()

    def _move(self, tokens: Sequence[int]) -> bool:
        """Stand behind ``tokens``; False when that is impossible, and then behind those that are possible."""
        own, wanted = self._tokens, list(tokens)
        same = len(own)
        if own != wanted[:same]:
            same = next(
                at for at, pair in enumerate(zip([*own, -1], [*wanted, -2], strict=False)) if pair[0] != pair[1]
            )
            self._matcher.rollback(len(own) - same)
        taken = self._matcher.try_consume_tokens(wanted[same:])
        self._tokens = wanted[: same + taken]
        self._check()
        return same + taken == len(wanted)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"structured_outputs cannot be followed: {self._matcher.get_error()}")


class Grammars:
    """Compiles structured outputs for one vocabulary. ``vocab_size``: width of a row of logits."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._compiled = lru_cache(_CACHED)(self._compile)

    def constraint(self, wanted: StructuredOutputs) -> Grammar:
        """For one sequence. Raises RequestError when ``wanted`` is no grammar, or llguidance is not installed."""
        return Grammar(self._compiled(_definition(wanted, self._controls)).deep_copy(), self._vocab_size)

    def _compile(self, definition: str) -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._vocabulary, definition, log_level=0)
        if matcher.is_error():
            raise RequestError(f"structured_outputs: {matcher.get_error().strip()}")
        return matcher

    @cached_property
    def _controls(self) -> Mapping[str, int]:
        """Ids of tokens that llguidance takes for no text, by their spelling: special ones, and further added ones."""
        added = self._tokenizer.hf.added_tokens_decoder.items()
        return {token.content: id_ for id_, token in added if self._vocabulary.is_special_token(id_)}

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        """The tokenizer as llguidance wants it; takes about a second."""
        from llguidance.hf import from_tokenizer

        ends = sorted(self._tokenizer.eos_ids)
        if not ends:
            raise RequestError("structured_outputs need an end token, and the model's tokenizer names none")
        if not self._tokenizer.hf.is_fast:
            raise RequestError("structured_outputs need a fast tokenizer: add the model's tokenizer.json")
        return from_tokenizer(self._tokenizer.hf, n_vocab=self._vocab_size, eos_token=ends)


def _definition(wanted: StructuredOutputs, vocab: Mapping[str, int]) -> str:
    """What llguidance compiles."""
    try:
        import llguidance
    except ImportError:
        raise RequestError("structured_outputs need llguidance: pip install 'outrider[structured]'") from None
    compiler = llguidance.LLMatcher
    try:
        if wanted.choice is not None:
            body = llguidance.grammar_from("choice", json.dumps(wanted.choice))
        elif wanted.regex is not None:
            body = compiler.grammar_from_regex(wanted.regex)
        elif wanted.grammar is not None:
            body = llguidance.grammar_from("grammar", wanted.grammar)
        else:
            given = _ANY_OBJECT if wanted.json_object else wanted.json_schema
            schema = given if isinstance(given, str) else json.dumps(given)
            body = compiler.grammar_from_json_schema(schema, defaults=_spacing(wanted.whitespace_pattern))
    except ValueError as error:
        raise RequestError(f"structured_outputs: {str(error).strip()}") from None
    return body if wanted.after is None else _behind(wanted.after, body, vocab)


def _spacing(pattern: str | None) -> JsonCompileOptions:
    """JSON as ``json.dumps`` spaces it, or with what matches ``pattern`` between its parts."""
    return _SPACING if pattern is None else {"whitespace_flexible": True, "whitespace_pattern": pattern}


def _behind(marker: str, body: str, vocab: Mapping[str, int]) -> str:
    """Any text up to and with ``marker`` first, then ``body``."""
    own = json.loads(body)["grammars"][0] if body.startswith("{") else {"lark_grammar": body}
    special = marker in vocab
    head = f"TEXT <[{vocab[marker]}]>" if special else "TEXT"
    attributes = "" if special else f"[suffix={json.dumps(marker)}]"
    lark = f"start: head @body\nhead{attributes}: {head}\nTEXT: /(.|\\n)*/"
    return json.dumps({"grammars": [{"name": "start", "lark_grammar": lark}, {**own, "name": "body"}]})
