"""Reasoning that stands before an answer's content, such as in ``<think>...</think>``."""

from __future__ import annotations

from outrider.server.parsers.machine import Machine, Watch


class ReasoningParser(Machine):
    """Tells reasoning from content. ``markers``: of its beginning and its end; ``thinking``: it has begun already.
    Space at its ends, and before the content, is left out."""

    def __init__(self, markers: tuple[str, str], thinking: bool) -> None:
        super().__init__()
        self._begin, self._end = markers
        self._raw = ""
        self._watch = Watch(self._end, skip=True)
        if thinking:
            self._state = self._inside

    @property
    def inside(self) -> bool:
        """Reasoning has begun and not ended."""
        return self._state == self._inside

    def _start(self, char: str) -> None:
        self._raw += char
        found = self._raw.lstrip()
        if found == self._begin:
            self._raw, self._state = "", self._inside
        elif not self._begin.startswith(found):
            self._say("content", self._raw)
            self._raw, self._state = "", self._text

    def _inside(self, char: str) -> None:
        out, marker = self._watch.add(char)
        self._say("reasoning", out)
        if marker:
            self._state = self._behind

    def _behind(self, char: str) -> None:
        if not char.isspace():
            self._state = self._text
            self._text(char)

    def _text(self, char: str) -> None:
        self._say("content", char)

    def _finish(self) -> None:
        self._say("content", self._raw)
        self._say("reasoning", self._watch.rest())
        self._raw = ""
