"""What the commands share: opening the model from options, speculative configs, terminals, JSON output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.config import SpeculativeConfig
    from outrider.drafters.table import DrafterInfo
    from outrider.llm import LLM

PIPE_WIDTH = 160  # columns of a table that goes into a file or a pipe


@dataclass(frozen=True, slots=True)
class Variant:
    """A method to run, by name, with K fixed or (None) left to the planner."""

    method: str
    num_tokens: int | None

    @property
    def label(self) -> str:
        """``method`` or ``method:K``."""
        return self.method if self.num_tokens is None else f"{self.method}:{self.num_tokens}"


def console(*, stderr: bool = True) -> Console:
    """A rich console on stderr (logs, progress) or on stdout (results); wide where it is no terminal."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, width=None if terminal else PIPE_WIDTH)


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def check_text(text: str, name: str) -> str:
    """``text``, unless it is empty or holds bytes that were no UTF-8: then a RequestError that says ``name``."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError(f"{name} is not UTF-8 text: convert it first, such as with iconv") from None
    if not text.strip():
        raise RequestError(f"{name} is empty: give some text")
    return text


def parse_methods(text: str, num_tokens: int | None) -> list[Variant]:
    """``"ngram,suffix:8"`` as variants. Raises ConfigError for an empty list, a bad K or a method named twice."""
    variants = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        method, _, count = part.partition(":")
        if method == "all":
            raise ConfigError(f"--method {text!r}: `all` (or `all:K`) stands alone; it names every method already")
        if count and not count.isdigit():
            raise ConfigError(f"--method {part!r}: K is not a number; write NAME or NAME:K, such as ngram:5")
        variants.append(Variant(method, int(count) if count else num_tokens))
    if not variants:
        raise ConfigError("--method is empty: name at least one method, such as ngram,suffix")
    if len(set(variants)) != len(variants):
        raise ConfigError(f"--method {text!r} names a variant twice: name each once")
    return variants


@dataclass(frozen=True, slots=True)
class Choice:
    """The variants to run, and why methods that `all` would have named are not among them."""

    variants: list[Variant]
    left_out: dict[str, str]
    everything: bool  # `all`: a method that does not go with the model is left out instead of being an error

    @property
    def methods(self) -> list[str]:
        """Ids of the methods, each once."""
        return list(dict.fromkeys(variant.method for variant in self.variants))

    def without(self, refused: Mapping[str, str]) -> Choice:
        """The choice without methods that the model or its drafts do not allow."""
        kept = [variant for variant in self.variants if variant.method not in refused]
        if not kept:
            raise ConfigError(f"--method all: no method is left; {'; '.join(refused.values())}")
        return Choice(kept, {**self.left_out, **refused}, True)

    def explain(self) -> None:
        """The reasons on stderr, one a line."""
        for method, reason in self.left_out.items():
            print(f"left out: {method}: {reason}", file=sys.stderr)


def choose_methods(
    text: str | None, num_tokens: int | None, config: Sequence[str] | None, draft: str | None, predicted: bool
) -> Choice:
    """``--method``: names, or `all` (`all:K`) for every method that ``config``, ``draft`` and the prompts allow.
    Without it, the methods of ``config``, or the two that need nothing.

    ``predicted``: the prompts hold expected outputs. Raises ConfigError as ``parse_methods`` does, and for a config
    whose method is not among the names.
    """
    given = {value["method"]: value for value in given_configs(config)}
    name, _, count = (",".join(given) or "ngram,suffix" if text is None else text).strip().partition(":")
    if name != "all":
        choice = Choice(parse_methods(text or name, num_tokens), {}, False)
        if unused := [method for method in given if method not in choice.methods]:
            raise ConfigError(
                f"--speculative-config names {', '.join(unused)}, which --method does not: add it there, or leave "
                "--method out"
            )
        return choice
    from outrider.drafters.registry import REGISTRY

    reasons = {row.method: _left_out(row, given.get(row.method, {}), draft, predicted) for row in REGISTRY.values()}
    names = [method for method, reason in reasons.items() if reason is None]
    variants = parse_methods(",".join(f"{method}:{count}" if count else method for method in names), num_tokens)
    return Choice(variants, {method: reason for method, reason in reasons.items() if reason is not None}, True)


def _left_out(row: DrafterInfo, given: Mapping[str, Any], draft: str | None, predicted: bool) -> str | None:
    """Why a method cannot run, in words that say what would change it; None when it can."""
    missing = [key for key in row.required if given.get(key) is None]
    if row.needs_model and "model" in missing and draft is not None:
        missing.remove("model")
    if row.needs_model and "model" in missing:
        return "needs a draft model: add --draft MODEL"
    if missing:
        example = ", ".join(f'"{key}": ...' for key in missing)
        return f'needs {", ".join(missing)}: add --speculative-config \'{{"method": "{row.method}", {example}}}\''
    if row.needs_prediction and not predicted:
        return "needs the expected output: no prompt has a prediction"
    if row.needs_structure:
        return "drafts for structured outputs: no prompt asks for one"
    return None


def speculative_configs(
    methods: Sequence[str], config: Sequence[str] | None, draft: str | None, num_tokens: int | None = None
) -> list[SpeculativeConfig]:
    """One config a method: from ``--speculative-config`` where it names the method, from its defaults elsewhere.

    Raises ConfigError for JSON that is not an object or a list of objects, and for settings that do not fit.
    """
    from outrider.config import SpeculativeConfig
    from outrider.drafters import registry

    given = given_configs(config)
    known = {value["method"] for value in given}
    values = given + [{"method": name} for name in dict.fromkeys(methods) if name not in known]
    for value in values:
        if draft is not None and "model" in registry.info(value["method"]).options:
            value.setdefault("model", draft)
        elif draft is not None and "models" in registry.info(value["method"]).required:
            value.setdefault("models", draft.split(","))
        if num_tokens is not None:
            value["num_speculative_tokens"] = num_tokens
    if draft is not None and not any(value.get("model") or value.get("models") for value in values):
        users = ", ".join(row.method for row in registry.REGISTRY.values() if {"model", "models"} & set(row.options))
        raise ConfigError(f"--draft is used by {users} only: add --method draft_model or leave it out")
    for value in values:
        row = registry.info(value["method"])
        if row.needs_model and "model" in row.required and not value.get("model"):
            raise ConfigError(f"--method {row.method} needs a draft model: add --draft MODEL")
    configs = [SpeculativeConfig(**value) for value in values]
    for item in configs:
        registry.check(item)
    return sorted(configs, key=lambda item: methods.index(item.method) if item.method in methods else len(methods))


def single_config(
    method: str | None, config: Sequence[str] | None, draft: str | None, num_tokens: int | None
) -> list[SpeculativeConfig]:
    """The configs of a command that runs one method; empty when nothing asks for speculation."""
    if method is None and draft is not None:
        method = "draft_model"
    if method is None and not config:
        if num_tokens is not None:
            raise ConfigError("-k needs a method: add --method NAME (see `outrider methods`)")
        return []
    if method is not None and "," in method:
        raise ConfigError(f"--method {method!r}: this command runs one method; `merge` and `auto` join several")
    named = [value["method"] for value in given_configs(config)]
    if method is not None and named and method not in named:
        raise ConfigError(f"--method {method!r} and --speculative-config, which names {', '.join(named)}: give one")
    return speculative_configs([method] if method else [], config, draft, num_tokens)


def given_configs(texts: Sequence[str] | None) -> list[dict[str, Any]]:
    """All ``--speculative-config`` as values with a method each. Raises ConfigError for other JSON."""
    return [_with_method(value) for text in texts or () for value in _json_configs(text)]


def _json_configs(text: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--speculative-config is not JSON ({error.msg} at character {error.pos})") from None
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(item, dict) for item in values):
        raise ConfigError("--speculative-config takes a JSON object, or a list of objects")
    return [dict(item) for item in values]


def _with_method(value: dict[str, Any]) -> dict[str, Any]:
    if "method" in value:
        return value
    if "model" not in value:
        raise ConfigError('--speculative-config names no method: add "method" (see `outrider methods`)')
    return {"method": "draft_model", **value}  # as vLLM reads a config with a model alone


def open_llm(model: str, *, threads: int | None, configs: Sequence[SpeculativeConfig], **settings: Any) -> LLM:
    """The engine. The thread settings are made before torch is imported, which is when OpenMP reads them."""
    from outrider.threads import prepare

    prepare(threads)
    from outrider.llm import LLM

    return LLM(model, threads=threads, speculative_config=list(configs) or None, **settings)


def explain(llm: LLM, enabled: bool) -> None:
    """The engine's reasons on stderr, one a line, when asked for."""
    if enabled:
        for line in llm.explain():
            print(line, file=sys.stderr)
