"""Text to ids and back: the only place that calls a transformers tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from outrider.errors import ModelError, RequestError

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
PRIMING = 32  # ids of a prompt that a stream keeps as left context
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what half a character decodes to


class Tokenizer:
    """A Hugging Face tokenizer with the ids that end an answer.

    ``hf``: the tokenizer itself. ``eos_ids``: every id after which the model stops. ``vocab``: text of a token as the
    vocabulary spells it, to its id. ``special_ids``: ids that ``skip_special_tokens`` leaves out.
    """

    def __init__(self, hf: Any, eos_ids: Iterable[int] = ()) -> None:
        self.hf = hf
        own = () if hf.eos_token_id is None else (hf.eos_token_id,)
        self.eos_ids: frozenset[int] = frozenset((*eos_ids, *own))
        self.vocab: Mapping[str, int] = hf.get_vocab()
        added = {id_ for id_, token in hf.added_tokens_decoder.items() if token.special}
        self.special_ids: frozenset[int] = frozenset(added.union(hf.all_special_ids))

    @classmethod
    def load(cls, location: str, *, eos_ids: Iterable[int] = (), **options: Any) -> Self:
        """The tokenizer of a folder or hub id; ``options`` go to transformers (revision, trust_remote_code).

        Raises ModelError when there is none or it cannot be read.
        """
        from transformers import AutoTokenizer

        try:
            return cls(AutoTokenizer.from_pretrained(location, **options), eos_ids)
        except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ModelError(
                f"model={location!r} has no tokenizer that can be read ({reason}): add its tokenizer.json"
            ) from None

    def __len__(self) -> int:
        """One more than the largest id of the vocabulary; embeddings may be larger."""
        return len(self.pieces)

    @cached_property
    def pieces(self) -> list[str | None]:
        """Text by id as the vocabulary spells it; None where an id is unused."""
        out: list[str | None] = [None] * (max(self.vocab.values(), default=-1) + 1)
        for text, id_ in self.vocab.items():
            out[id_] = text
        return out

    @cached_property
    def longest_piece(self) -> int | None:
        """Characters of a text that a token stands for at most. None where that is not known: a normaliser, a special
        token that takes the blanks around it, or one token for all that is unknown may swallow more."""
        strips = any(token.lstrip or token.rstrip for token in self.hf.added_tokens_decoder.values())
        if not self._byte_level or strips or self.hf.backend_tokenizer.normalizer is not None:
            return None
        return max((len(piece) for piece in self.pieces if piece), default=None)

    @property
    def bos_id(self) -> int | None:
        """The id that starts a text, if the vocabulary has one."""
        return self.hf.bos_token_id  # type: ignore[no-any-return]

    @property
    def eos_id(self) -> int | None:
        """The id that the tokenizer itself ends a text with; ``eos_ids`` has those of the model as well."""
        return self.hf.eos_token_id  # type: ignore[no-any-return]

    @property
    def has_chat_template(self) -> bool:
        """Whether ``encode_chat`` can be used."""
        return bool(self.chat_template)

    @property
    def chat_template(self) -> str:
        """The source of the model's chat template, or of all of them where it has several; empty where it has none."""
        template = getattr(self.hf, "chat_template", None) or ""
        return "\n".join(template.values()) if isinstance(template, dict) else str(template)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of ``text``, with the beginning-of-text id where the model was trained with one.

        Raises RequestError when ``text`` holds half a character (a lone surrogate).
        """
        try:
            return list(self.hf(text, add_special_tokens=add_special_tokens)["input_ids"])
        except (TypeError, UnicodeEncodeError):
            raise RequestError("prompt is no valid Unicode text: decode its bytes as UTF-8 first") from None

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, without special tokens of their own: on all cores where the tokenizer can.

        Raises RequestError as ``encode`` does.
        """
        if not self.hf.is_fast:
            return [self.encode(text, add_special_tokens=False) for text in texts]
        try:
            encodings = self.hf.backend_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            raise RequestError("a text is no valid Unicode: decode its bytes as UTF-8 first") from None
        return [encoding.ids for encoding in encodings]

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Ids of a conversation in the model's chat template; ``variables`` go to the template (tools, ...).

        Raises ModelError when the model has no template, RequestError when the template refuses the messages.
        """
        return self.encode(
            self.render_chat(messages, add_generation_prompt=add_generation_prompt, **variables),
            add_special_tokens=False,  # a template writes its own
        )

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The conversation as the text that ``encode_chat`` encodes; raises what it raises."""
        if not self.has_chat_template:
            raise ModelError("the model has no chat template: use generate with a plain prompt, or an instruct model")
        from jinja2 import TemplateError

        try:
            text = self.hf.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        except (TemplateError, TypeError, LookupError, ArithmeticError, AttributeError, ValueError) as error:
            raise RequestError(f"messages do not fit the model's chat template: {error}") from None
        return str(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ``ids``; bytes that are no UTF-8 become U+FFFD."""
        return str(
            self.hf.decode(list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
        )

    def stream(self, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True) -> DetokenStream:
        """A stream of text for the ids that follow ``prompt_ids``."""
        return DetokenStream(self, prompt_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one id stands for, alone and unstripped (for logprobs). Empty for an unused id."""
        piece = self.pieces[token_id] if 0 <= token_id < len(self.pieces) else None
        if piece is None:
            return b""
        if token_id in self._whole_ids:
            return piece.encode()
        if self._byte_level:
            return bytes(_BYTE_OF[char] for char in piece)
        if match := BYTE_TOKEN.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()

    def token_text(self, token_id: int) -> str:
        """``token_bytes`` as text; half a character becomes U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    @cached_property
    def byte_token_ids(self) -> frozenset[int]:
        """Ids of byte-fallback tokens such as ``<0x0A>``, whose text depends on their neighbours."""
        return frozenset(id_ for text, id_ in self.vocab.items() if BYTE_TOKEN.fullmatch(text))

    @cached_property
    def _whole_ids(self) -> frozenset[int]:
        return frozenset(self.hf.added_tokens_decoder)

    @cached_property
    def _byte_level(self) -> bool:
        backend = getattr(self.hf, "backend_tokenizer", None)
        return "ByteLevel" in str(getattr(backend, "decoder", ""))


class DetokenStream:
    """Text as its ids come in: all ``push`` results and ``flush`` together equal ``decode`` of all ids.

    Text is held back while it may still change: after half a character, and within a run of byte-fallback tokens
    (``tokenizers.decoders.DecodeStream`` emits such runs early and then raises when they turn out to be no UTF-8).
    The ids of the last text that was shown stay as left context, since a decoder may strip a leading space.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids = list(prompt_ids[-PRIMING:])
        self._shown = len(self._decode(self._ids))  # characters of decode(_ids) that are out
        self._fresh = 0  # ids at the end of _ids that are not out

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` makes certain; may be empty."""
        self._ids.append(token_id)
        self._fresh += 1
        if self._leaves_text_open(token_id):
            return ""
        text = self._decode(self._ids)
        if text.endswith(REPLACEMENT):
            return ""
        return self._show(text)

    def flush(self) -> str:
        """What is still held back. The stream can go on afterwards only if nothing was."""
        return self._show(self._decode(self._ids))

    def _show(self, text: str) -> str:
        out = text[self._shown :]
        context = self._ids[len(self._ids) - self._fresh :] if self._fresh else self._ids
        self._ids, self._shown = context, len(self._decode(context))
        self._fresh = 0
        return out

    def _leaves_text_open(self, token_id: int) -> bool:
        """Part of a run of bytes, or an id without text (skipped, unused), which does not end such a run."""
        tokenizer = self._tokenizer
        return (
            token_id in tokenizer.byte_token_ids
            or (self._skip and token_id in tokenizer.special_ids)
            or token_id >= len(tokenizer)
            or tokenizer.pieces[token_id] is None
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)


def _byte_level_alphabet() -> dict[str, int]:
    """The byte of each character of GPT-2's alphabet: printable Latin-1 stands for itself, the rest is moved up."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(kept)]
    return {chr(byte): byte for byte in kept} | {chr(256 + index): byte for index, byte in enumerate(moved)}


_BYTE_OF = _byte_level_alphabet()
