"""Typed errors. Each message is one line that names the setting at fault and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence


class OutriderError(Exception):
    """Base of every error that Outrider raises on purpose.

    ``outputs``: when one request of a batch failed, what all of them got (``LLM.generate`` and ``LLM.chat``).
    """

    outputs: Sequence[object] = ()


class ConfigError(OutriderError, ValueError):
    """A setting is impossible, unknown, or does not go with another one."""


class ModelError(OutriderError):
    """A model cannot be found, read, or served (unknown id, broken file, unsupported architecture)."""


class VocabularyError(ModelError):
    """Draft and target do not share one id-to-token map."""


class RequestError(OutriderError, ValueError):
    """A request cannot be served as asked (empty prompt, prompt over the context, bad parameter)."""


class NumericsError(OutriderError, ArithmeticError):
    """Raw logits hold NaN or +infinity, or every token of a law is masked."""


class GrammarError(NumericsError):
    """A structured output that cannot be followed: too complex, or not to be written in the model's vocabulary."""


class ContractError(OutriderError, AssertionError):
    """A drafter or a verifier broke its contract (budget, shape, law, a random draw used twice)."""


class CacheError(OutriderError):
    """The KV cache is short of blocks, or a block was used against its state (freed twice, shared while free)."""


def why_unread(error: Exception) -> str:
    """Why a file could not be read, in words for the brackets of a message."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8 text"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON: {error.msg} in line {error.lineno}"
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question about the nearest of the known names; empty where none is near."""
    import difflib  # only an error has need of it

    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]!r}?" if close else ""
