"""Calls of Python libraries: `model.generate(...)` of transformers and `LLM(...)` of vLLM."""

from __future__ import annotations

import ast
from typing import Any

from outrider.errors import ConfigError
from outrider.export.migrate import vllm
from outrider.export.migrate.base import Migration

_OF_ASSISTANT = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
_GENERATE_GONE = {
    "dola_layers": "DoLa moved to the Hub: generate(custom_generate='transformers-community/dola')",
    "penalty_alpha": "contrastive search moved to the Hub: "
    "generate(custom_generate='transformers-community/contrastive-search')",
}
_LLM = {flag[2:].replace("-", "_"): rule for flag, rule in vllm.FLAGS.items() if flag.startswith("--")}


def is_call(text: str) -> bool:
    """Whether a text is a call of `generate` or `LLM`, perhaps with an assignment."""
    found = _parse(text)
    return found is not None and _name(found[1]) in ("generate", "LLM")


def migrate(text: str, out: Migration) -> str:
    """The current call, after lines that must come before it."""
    found = _parse(text)
    if found is None:
        raise ConfigError("that is no call in Python: give one call of generate or LLM")
    statement, call = found
    before = _llm(call, out) if _name(call) == "LLM" else _generate(call, out)
    return "\n".join([*before, ast.unparse(statement)])


def _parse(text: str) -> tuple[ast.stmt, ast.Call] | None:
    try:
        body = ast.parse(text.strip()).body
    except SyntaxError:
        return None
    statement = body[0] if len(body) == 1 else None
    value = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    return (statement, value) if statement is not None and isinstance(value, ast.Call) else None


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _generate(call: ast.Call, out: Migration) -> list[str]:
    out.engine = "transformers"
    owner = next((ast.unparse(word.value) for word in call.keywords if word.arg == "assistant_model"), None)
    before, kept = [], []
    for word in call.keywords:
        name, value = word.arg or "**", ast.unparse(word.value)
        if name in _OF_ASSISTANT and owner is not None:
            line = f"{owner}.generation_config.{name} = {value}"
            before.append(line)
            out.tell("moved", f"{name}={value}", line, "it is read from the assistant's settings, not from the call's")
        elif name in _GENERATE_GONE:
            out.tell("gone", f"{name}={value}", "", _GENERATE_GONE[name])
        else:
            kept.append(word)
            out.unchanged.append(name)
    call.keywords = kept
    return before


def _llm(call: ast.Call, out: Migration) -> list[str]:
    out.engine = "vllm"
    config: dict[str, Any] = {}
    kept: list[ast.keyword] = []
    moved = False
    for word in call.keywords:
        name = word.arg or "**"
        rule = _LLM.get(name)
        text = f"{name}={ast.unparse(word.value)}"
        if name == "speculative_config":
            config |= _literal(word)
        elif rule is None:
            kept.append(word)
            out.unchanged.append(name)
        elif rule.new:
            config[rule.new], moved = _literal(word), True
            out.tell("moved", text, f"speculative_config key {rule.new}", rule.why)
        else:
            out.tell("gone", text, "", rule.why)
    current = vllm.clean(config, out) if config or moved else {}
    if current:
        value = ast.parse(repr(current), mode="eval").body
        kept.append(ast.keyword("speculative_config", value))
    call.keywords = kept
    return []


def _literal(word: ast.keyword) -> Any:
    try:
        return ast.literal_eval(word.value)
    except ValueError:
        raise ConfigError(f"{word.arg}={ast.unparse(word.value)}: give its value itself, not a name for it") from None
