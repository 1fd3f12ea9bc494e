"""A tool call that is written as a JSON object, read character by character."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from outrider.server.parsers.machine import Piece

_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", "type", "id", *_ARGUMENTS)
_OPEN, _CLOSE = "{[", "}]"


class ValueReader:
    """Finds the end of a JSON value: a string, or whatever stands in brackets. Brackets are counted, not matched."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped = 0, False, False

    def add(self, char: str) -> bool:
        """Whether ``char`` is the value's last."""
        if self._quoted:
            self._quoted = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._quoted = True
        elif char in _OPEN:
            self._depth += 1
        elif char in _CLOSE:
            self._depth -= 1
        return not self._quoted and self._depth == 0


class CallReader:
    """Reads ``{"name": ..., "arguments": {...}}``; ``parameters`` will do as well, and so will arguments in a string.

    ``names``: the functions there are, and an object with other keys is no call; None: whatever has a name is one.
    ``begun``: the call has been said; ``done``: the object has ended; ``broken``: it is none, or not one of a call.
    Arguments are handed out as they are written.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self._names = names
        self._state: Callable[[str], None] = self._open
        self._said: list[Piece] = []
        self._key = self._raw = ""
        self._value = ValueReader()
        self._early = ""  # arguments that came before the name
        self._has_arguments = False
        self.begun = self.done = self.broken = False

    def add(self, char: str) -> list[Piece]:
        """What ``char`` adds to the call. Not to be called once it is done or broken."""
        self._state(char)
        out, self._said = self._said, []
        return out

    def _break(self) -> None:
        self.broken = True

    def _open(self, char: str) -> None:
        if char == "{":
            self._state = self._before_key
        elif not char.isspace():
            self._break()

    def _before_key(self, char: str) -> None:
        if char == '"':
            self._raw, self._value, self._state = char, ValueReader(), self._in_key
            self._value.add(char)
        elif char == "}":
            self._close()
        elif not char.isspace():
            self._break()

    def _in_key(self, char: str) -> None:
        self._raw += char
        if self._value.add(char):
            key = _decoded(self._raw)
            strange = self._names is not None and key not in _KEYS
            if not isinstance(key, str) or strange or (key in _ARGUMENTS and self._has_arguments):
                self._break()
            self._key, self._state = str(key), self._colon

    def _colon(self, char: str) -> None:
        if char == ":":
            self._state = self._before_value
        elif not char.isspace():
            self._break()

    def _before_value(self, char: str) -> None:
        if char.isspace():
            return
        self._raw, self._value = "", ValueReader()
        if char in _OPEN or char == '"':
            streams = self._key in _ARGUMENTS and char in _OPEN
            self._state = self._in_arguments if streams else self._in_value
            self._has_arguments |= streams
            self._state(char)
        elif char.isalnum() or char == "-":
            self._raw, self._state = char, self._in_bare
        else:
            self._break()

    def _in_arguments(self, char: str) -> None:
        self._tell(char)
        if self._value.add(char):
            self._state = self._after

    def _in_value(self, char: str) -> None:
        self._raw += char
        if self._value.add(char):
            self._take(self._raw)

    def _in_bare(self, char: str) -> None:
        if char.isspace() or char in ",}":
            self._take(self._raw)
            if not self.broken:
                self._after(char)
        else:
            self._raw += char

    def _take(self, raw: str) -> None:
        """A value other than streamed arguments is complete."""
        self._state = self._after
        if self._key != "name" and self._key not in _ARGUMENTS:
            return
        value = _decoded(raw)
        if self._key == "name":
            self._begin(value)
        elif value is not _BAD:
            self._has_arguments = value is not None
            self._tell("" if value is None else value if isinstance(value, str) else raw)
        else:
            self._break()

    def _begin(self, name: Any) -> None:
        if self.begun or not isinstance(name, str) or not name or (self._names is not None and name not in self._names):
            self._break()
            return
        self.begun = True
        self._said.append(Piece("call", name))
        self._tell(self._early)

    def _tell(self, text: str) -> None:
        if not self.begun:
            self._early += text
        elif text:
            self._said.append(Piece("arguments", text))

    def _after(self, char: str) -> None:
        if char == ",":
            self._state = self._before_key
        elif char == "}":
            self._close()
        elif not char.isspace():
            self._break()

    def _close(self) -> None:
        if not self.begun:
            self._break()
            return
        if not self._has_arguments:
            self._tell("{}")
        self.done = True


_BAD = object()


def _decoded(raw: str) -> Any:
    """The JSON value, or ``_BAD``; half a character is none."""
    try:
        value = json.loads(raw)
        if isinstance(value, str):
            value.encode()
    except (ValueError, RecursionError):
        return _BAD
    return value
