"""How another engine is set: a speculative config, its arguments as JSON or YAML, or a whole command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, why_unread

_SPEC_KEYS = ("speculative_config", "speculative-config")
_SGLANG = "speculative_"
_SGLANG_KEYS = {
    "speculative_algorithm": "method",
    "speculative_draft_model_path": "model",
    "speculative_draft_model": "model",
    "speculative_num_steps": "num_speculative_tokens",
    "speculative_draft_model_quantization": "quantization",
    "speculative_draft_kv_cache_dtype": "kv_cache_dtype",
    "context_length": "max_model_len",
    "model_path": "model",
}
_TRTLLM_KEYS = {
    "decoding_type": "method",
    "speculative_model": "model",
    "speculative_model_dir": "model",
    "max_draft_len": "num_speculative_tokens",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """``target``: the engine's own arguments, under vLLM's names; ``speculative``: those of the draft; ``source``."""

    source: str
    target: Mapping[str, Any] = field(default_factory=dict)
    speculative: Mapping[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """Of drafting, in small letters; empty where there is none."""
        value = self.speculative.get("method")
        return "draft_model" if value is None and self.speculative.get("model") else str(value or "").lower()

    def length(self, of: Mapping[str, Any]) -> int | None:
        """The context in ``of``, as a number. Raises ConfigError where it is none."""
        value = of.get("max_model_len")
        if value is None:
            return None
        text = str(value).lower()
        scale = {"k": 1000, "m": 1_000_000}.get(text[-1:], 1)
        digits = text[:-1] if scale > 1 else text
        if not digits.isdigit():
            raise ConfigError(f"{self.source}: max_model_len {value!r} is no number of tokens")
        return int(digits) * scale


def read(text: str) -> Settings:
    """``text``: JSON, a command line, or @FILE with either, or with YAML. Raises ConfigError where it is neither."""
    source = "--engine-config"
    if text.startswith("@"):
        source = text[1:]
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--engine-config {text}: cannot be read ({why_unread(error)})") from None
    if source.endswith((".yaml", ".yml")):
        return _of_json(_yaml(text, source), source)
    if text.lstrip().startswith("{"):
        return _of_json(_json(text, source), source)
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise ConfigError(f"{source}: is neither JSON nor a command line ({error})") from None
    if not any(word.startswith("-") for word in words):
        raise ConfigError(f"{source}: is neither a JSON object nor a command line with options")
    return _of_json(_arguments(words, source), source)


def _json(text: str, source: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: {why_unread(error)}; within a command line quote it, or give @FILE") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: is no JSON object")
    return value


def _yaml(text: str, source: str) -> dict[str, Any]:
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: is no YAML ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: is no YAML mapping")
    return value


def _of_json(value: dict[str, Any], source: str) -> Settings:
    inner = next((value[key] for key in _SPEC_KEYS if key in value), None)
    if isinstance(inner, str):
        inner = _json(inner, source)
    if inner is not None:
        if not isinstance(inner, dict):
            raise ConfigError(f"{source}: speculative_config is no object")
        target = {key: each for key, each in value.items() if key not in _SPEC_KEYS}
        return Settings(source, target, _renamed(inner, _TRTLLM_KEYS))
    if any(key.startswith(_SGLANG) for key in value):
        spec = {key: each for key, each in value.items() if key.startswith(_SGLANG)}
        rest = {key: each for key, each in value.items() if key not in spec}
        return Settings(source, _renamed(rest, _SGLANG_KEYS), _renamed(spec, _SGLANG_KEYS))
    if "num_speculative_tokens" in value or "method" in value:
        return Settings(source, {}, value)
    return Settings(source, _renamed(value, _SGLANG_KEYS), {})


def _renamed(value: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key.removeprefix(_SGLANG)): each for key, each in value.items()}


def _arguments(words: Sequence[str], source: str) -> dict[str, Any]:
    """Options of a command line; a word without a dash behind `serve` is the model."""
    out: dict[str, Any] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-"):
            if at >= 2 and words[at - 2] == "serve":
                out["model"] = word
            continue
        name, given, value = word.lstrip("-").partition("=")
        if not given and at < len(words) and not words[at].startswith("-"):
            value, given = words[at], "="
            at += 1
        key = name.replace("-", "_")
        if key.startswith("no_") and not given:
            out[key.removeprefix("no_")] = False
        else:
            out[key] = value if given else True
    return out
