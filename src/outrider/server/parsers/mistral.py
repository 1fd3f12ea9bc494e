"""``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``, and newer ``[TOOL_CALLS]name{...}``: Mistral."""

from __future__ import annotations

import re
import uuid
from typing import ClassVar

from outrider.server.parsers.forced import Forcing, quoted
from outrider.server.parsers.json_call import CallReader, ValueReader
from outrider.server.parsers.tools import MarkedParser

_HEADER = re.compile(r"([\w.-]+)(?:\[CALL_ID\][\w-]+)?(?:\[ARGS\])?")
_LONGEST_HEADER = 256


class MistralParser(MarkedParser):
    """The ids that the newer form may hold are left out: an answer's calls have ids of their own."""

    markers: ClassVar[tuple[str, ...]] = ("[TOOL_CALLS]",)

    @staticmethod
    def new_id() -> str:
        """Nine letters and digits: the templates take no others."""
        return uuid.uuid4().hex[:9]

    @classmethod
    def grammar(cls, forcing: Forcing) -> str:
        """The newer form where the template has it, else the list."""
        marker = forcing.marker(cls.markers[0])
        if "[ARGS]" not in forcing.template:
            listed = forcing.repeated("object", ", ")
            return f'start: {marker} "[" {listed} "]"\n{forcing.objects("arguments")}'
        args = forcing.marker("[ARGS]")
        return f"start: {forcing.repeated('call', '')}\n" + forcing.rules(
            "call", lambda name: f"{marker} {quoted(name)} {args}"
        )

    def _enter(self) -> None:
        self._header, self._state = "", self._form

    def _form(self, char: str) -> None:
        if char == "[":
            self._raw += char
            self._reader, self._state = CallReader(), self._between
        elif char.isspace():
            self._raw += char
        else:
            self._state = self._name
            self._name(char)

    def _between(self, char: str) -> None:
        """Within the list, outside of its objects."""
        if char == "]":
            self._leave()
        elif char == "{":
            self._reader, self._state = CallReader(), self._object
            self._object(char)
        elif char.isspace() or char == ",":
            self._raw += char
        else:
            self._raw += char
            self._give_up()

    def _object(self, char: str) -> None:
        self._read_object(self._reader, char, self._between)

    def _name(self, char: str) -> None:
        self._raw += char
        if char != "{" and len(self._header) < _LONGEST_HEADER:
            self._header += char
        elif match := _HEADER.fullmatch(self._header.strip()):
            self._say("call", match[1])
            self._raw = ""
            self._value, self._state = ValueReader(), self._arguments
            self._arguments(char)
        else:
            self._give_up()

    def _arguments(self, char: str) -> None:
        self._say("arguments", char)
        if self._value.add(char):
            self._leave()
