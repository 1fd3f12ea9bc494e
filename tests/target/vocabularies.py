"""Tiny tokenizers of three kinds, with merges, so that what they write is what they would have read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from outrider.target.spelling import Spelling
from outrider.target.tokenizer import Tokenizer

EMOJI = "ðŁĺĢ"  # the four bytes of a smiley in the byte-level alphabet
OURS = ("Ġthe", "Ġof", "ing", "Ġhi", "ab", EMOJI[:2], "ĊĊ")
THEIRS = ("Ġthere", "Ġhi", "ing", "abc", EMOJI, "Ġa")


def merged(words: Sequence[str], alphabet: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and merges that build each word from the left, and its beginnings with it."""
    tokens, merges = list(alphabet), []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    return tokens, merges


def finished(backend: Backend, bos: str, eos: str, **options: object) -> PreTrainedTokenizerFast:
    """With its special tokens."""
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (bos, eos)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=eos, **options)


def byte_level(
    words: Sequence[str], alphabet: Sequence[str] | None = None, eos: str = "</s>", last: bool = False
) -> PreTrainedTokenizerFast:
    """GPT-2's kind; ``last``: the special tokens have the highest ids instead of the lowest."""
    tokens, merges = merged(words, alphabet or sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokens = [*tokens[::-1], "<s>", eos] if last else ["<s>", eos, *tokens]
    backend = Backend(models.BPE(vocab={text: id_ for id_, text in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return finished(backend, "<s>", eos)


def sentencepiece(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Llama 2's kind: a space is ``▁``, a text begins with one, other characters are byte tokens."""
    pieces, merges = merged([word.replace("Ġ", "▁") for word in words], ["▁", *"abcdefghijklmnopqrstuvwxyz"])
    tokens = ["<unk>", "<s>", "<end>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    backend = Backend(
        models.BPE(
            vocab={text: id_ for id_, text in enumerate(tokens)}, merges=merges, byte_fallback=True, unk_token="<unk>"
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return finished(backend, "<s>", "<end>", unk_token="<unk>")


@cache
def target() -> Tokenizer:
    """A byte-level target."""
    return Tokenizer(byte_level(OURS))


@cache
def drafts() -> dict[str, Tokenizer]:
    """Draft vocabularies by kind."""
    return {
        "byte-level": Tokenizer(byte_level(THEIRS, eos="<end>", last=True)),
        "sentencepiece": Tokenizer(sentencepiece([word for word in THEIRS if word != EMOJI])),
    }


def spelling(tokenizer: Tokenizer, more: int = 0) -> Spelling:
    """The bytes of a tokenizer whose model has ``more`` rows than there are tokens."""
    return Spelling(tokenizer, len(tokenizer) + more)
