"""Which engine a line is for, and its migration."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from outrider.errors import ConfigError
from outrider.export.migrate import calls, llamacpp, sglang, trtllm, vllm
from outrider.export.migrate.base import Migration

_WORDS: tuple[tuple[str, str, Callable[[list[str], Migration], list[str]]], ...] = (
    ("vllm", "vllm", vllm.migrate),
    ("sglang", "sglang", sglang.migrate),
    ("trtllm", "trtllm", trtllm.migrate),
    ("llama-", "llamacpp", llamacpp.migrate),
)


def migrate(text: str) -> Migration:
    """A command line, or a call in Python, made current.

    Raises ConfigError for a line that cannot be split, that names no engine, or whose flags lack their values.
    """
    if calls.is_call(text):
        out = Migration("", text)
        out.line = calls.migrate(text, out)
        return out
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise ConfigError(f"the command line cannot be split into words ({error}): check its quotes") from None
    for word in words:  # the first that names one: models' names may hold others
        for part, engine, of_engine in _WORDS:
            if not word.startswith("-") and "=" not in word and word.rpartition("/")[2].startswith(part):
                out = Migration(engine, text)
                out.line = _join(of_engine(words, out))
                return out
    raise ConfigError(
        "no engine is named in it: give a line with vllm, sglang, trtllm-serve or llama-server, or a call of generate "
        "or LLM"
    )


def _join(words: list[str]) -> str:
    """Words for a shell; settings of the environment in front stay what they are."""
    count = 0
    while count < len(words) and "=" in words[count] and words[count].partition("=")[0].isidentifier():
        count += 1
    return " ".join([*words[:count], shlex.join(words[count:])])
