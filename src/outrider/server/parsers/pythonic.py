"""``[name(key=value, ...), ...]`` as the whole answer, with Python's literals: Llama 4 and others."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection
from typing import ClassVar

from outrider.errors import RequestError
from outrider.server.parsers.forced import Forcing
from outrider.server.parsers.tools import ToolParser

_OPEN, _CLOSE = "([{", ")]}"


class PythonicParser(ToolParser):
    """An answer is a list of calls if it begins with one of an offered function. A call is said once it is complete."""

    markers: ClassVar[tuple[str, ...]] = ("<|python_start|>", "<|python_end|>")

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._tag = self._part = self._quote = ""
        self._depth, self._escaped = 0, False

    @classmethod
    def grammar(cls, forcing: Forcing) -> str:
        """There is none: JSON schemas say nothing of Python's literals."""
        raise RequestError("tool_choice: calls cannot be forced with --tool-call-parser pythonic: use auto")

    def _start(self, char: str) -> None:
        self._raw += char
        if char == "[" and self._tag in ("", self.markers[0]):
            self._state = self._calls
            return
        self._tag += "" if char.isspace() and not self._tag else char
        if not self.markers[0].startswith(self._tag):
            self._give_up()

    def _calls(self, char: str) -> None:
        """Within the list: find the end of each of its parts."""
        self._raw += char
        ends = not self._quote and self._depth == 0 and char in ",]"
        if not ends:
            self._part += char
            self._follow(char)
            return
        call, self._part = _call(self._part, self._names), ""
        if call is None:
            self._give_up()
            return
        self._say("call", call[0])
        self._say("arguments", call[1])
        self._raw = ""
        if char == "]":
            self._tag, self._state = "", self._behind

    def _follow(self, char: str) -> None:
        """Keep count of brackets and quotes."""
        if self._quote:
            if char == self._quote and not self._escaped:
                self._quote = ""
            self._escaped = char == "\\" and not self._escaped
        elif char in "'\"":
            self._quote = char
        elif char in _OPEN:
            self._depth += 1
        elif char in _CLOSE:
            self._depth -= 1
            if self._depth < 0:
                self._give_up()

    def _behind(self, char: str) -> None:
        """Behind the list: space, the end marker, or text."""
        self._raw += char
        self._tag += "" if char.isspace() else char
        if not self.markers[1].startswith(self._tag):
            self._give_up()

    def _text(self, char: str) -> None:
        self._say("content", char)

    def _finish(self) -> None:
        if self._state != self._behind:
            self._say("content", self._raw)
        self._raw = ""


def _call(text: str, names: Collection[str]) -> tuple[str, str] | None:
    """Name and JSON arguments of a call of one of ``names`` with literal values; None where it is none."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args or (name := ast.unparse(call.func)) not in names:
            return None
        values = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
        if len(values) != len(call.keywords):
            return None
        arguments = json.dumps(values, ensure_ascii=False, allow_nan=False)
        arguments.encode()
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return name, arguments
