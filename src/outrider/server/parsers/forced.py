"""Grammars that leave a model nothing but tool calls to write, in Lark as llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.server.conversation import Function

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as json.dumps writes


@dataclass(frozen=True, slots=True)
class Forcing:
    """What is forced: a call of one of ``functions``, or ``many`` calls. ``marker``: a text in Lark, which is another
    thing where the text is a token of its own; ``template``: the chat template."""

    functions: Sequence[Function]
    many: bool
    marker: Callable[[str], str]
    template: str

    def objects(self, arguments: str) -> str:
        """The rule ``object``: the call as ``{"name": ..., ARGUMENTS: {...}}``."""
        return self.rules("object", lambda name: quoted(f'{{"name": "{name}", "{arguments}": '), quoted("}"))

    def rules(self, rule: str, before: Callable[[str], str], after: str = "") -> str:
        """The rule ``rule``: what stands ``before`` the arguments of a function, the arguments, and ``after``; in
        Lark."""
        lines = [f"{rule}: {' | '.join(f'call{number}' for number in range(len(self.functions)))}"]
        for number, function in enumerate(self.functions):
            lines.append(f"call{number}: {before(function.name)} arguments{number} {after}")
            lines.append(f"arguments{number}: %json {json.dumps(_schema(function))}")
        return "\n".join(lines)

    def repeated(self, rule: str, between: str) -> str:
        """``rule``, or several with the text ``between`` between them."""
        joint = quoted(between) if between else ""
        return f"{rule} ({joint} {rule})*" if self.many else rule


def quoted(text: str) -> str:
    """A text in Lark."""
    return json.dumps(text, ensure_ascii=False)


def _schema(function: Function) -> dict[str, Any]:
    return {"type": "object", **(function.parameters or {}), "x-guidance": _SPACING}
