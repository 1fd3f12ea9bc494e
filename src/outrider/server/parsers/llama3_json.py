"""``{"name": ..., "parameters": {...}}`` as the whole answer, several with ``;`` between them: Llama 3."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from outrider.server.parsers.forced import Forcing
from outrider.server.parsers.json_call import CallReader
from outrider.server.parsers.tools import ToolParser


class Llama3JsonParser(ToolParser):
    """Nothing but its beginning marks a call: an answer is one if it begins with the object of an offered function."""

    markers: ClassVar[tuple[str, ...]] = ("<|python_tag|>",)

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._tag = ""

    @classmethod
    def grammar(cls, forcing: Forcing) -> str:
        """Objects with ``;`` between them."""
        return f"start: {forcing.repeated('object', '; ')}\n{forcing.objects('parameters')}"

    def _start(self, char: str) -> None:
        if char == "{":
            self._begin(char)
            return
        self._raw += char
        self._tag += "" if char.isspace() and not self._tag else char
        if self._tag == self.markers[0]:
            self._state = self._object_next
        elif not self.markers[0].startswith(self._tag):
            self._give_up()

    def _object_next(self, char: str) -> None:
        """Behind the marker or a call: space, and another call or text."""
        if char == "{":
            self._begin(char)
            return
        self._raw += char
        if not (char.isspace() or char == ";"):
            self._give_up()

    def _begin(self, char: str) -> None:
        self._reader, self._state = CallReader(self._names), self._call
        self._call(char)

    def _call(self, char: str) -> None:
        self._read_object(self._reader, char, self._between)

    def _between(self, char: str) -> None:
        self._object_next(char)

    def _text(self, char: str) -> None:
        self._say("content", char)

    def _finish(self) -> None:
        if self._state != self._between:
            self._say("content", self._raw)
        self._raw = ""
