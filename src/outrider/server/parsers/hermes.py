"""``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen 2.5 and 3, and others.

Small models of theirs often write the objects alone: an answer that begins with one of an offered function is a call.
"""

from __future__ import annotations

from typing import ClassVar

from outrider.server.parsers.forced import Forcing
from outrider.server.parsers.json_call import CallReader
from outrider.server.parsers.machine import Watch
from outrider.server.parsers.tools import MarkedParser


class HermesParser(MarkedParser):
    """A call that lacks its end marker ends with its object."""

    markers: ClassVar[tuple[str, ...]] = ("<tool_call>", "</tool_call>")
    _behind_call = False

    @classmethod
    def grammar(cls, forcing: Forcing) -> str:
        """Marked calls, a line each."""
        begin, end = map(forcing.marker, cls.markers)
        start = forcing.repeated("call", "\n")
        return f'start: {start}\ncall: {begin} "\\n" object "\\n" {end}\n{forcing.objects("arguments")}'

    def _start(self, char: str) -> None:
        """At the beginning, or behind an object that stood alone."""
        if char == "{":
            self._reader, self._state = CallReader(self._names), self._alone
            self._alone(char)
        elif char.isspace():
            self._raw += "" if self._behind_call else char
        else:
            held, self._raw, self._state = self._raw, "", self._text
            for each in held + char:
                self._state(each)

    def _alone(self, char: str) -> None:
        self._read(self._reader, char)
        if self._reader.done:
            self._leave()
            self._behind_call, self._state = True, self._start
        elif self._reader.broken:
            self._give_up()

    def _enter(self) -> None:
        self._reader, self._state = CallReader(), self._call

    def _call(self, char: str) -> None:
        self._read(self._reader, char)
        if self._reader.done or (self._reader.broken and self._reader.begun):
            self._raw = ""
            self._closing, self._state = Watch(self.markers[1], skip=True), self._close
            if self._reader.broken:
                self._close(char)
        elif self._reader.broken:
            self._give_up()

    def _close(self, char: str) -> None:
        out, marker = self._closing.add(char)
        if marker:
            self._leave()
        elif out:
            self._leave()
            for each in out + self._closing.rest():
                self._state(each)
