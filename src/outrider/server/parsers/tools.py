"""What all formats of tool calls share."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import ClassVar

from outrider.server.parsers.forced import Forcing
from outrider.server.parsers.json_call import CallReader
from outrider.server.parsers.machine import Machine, Watch


class ToolParser(Machine):
    """Tells tool calls from content. What looked like a call and turns out to be none is content. ``names``: the
    functions that the request offers. ``markers``: texts that calls are marked with."""

    markers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = names
        self._raw = ""  # the text of a call that is not certain yet

    @staticmethod
    def new_id() -> str:
        """An id for a call, in the form that the model's template takes."""
        return f"call_{uuid.uuid4().hex[:24]}"

    @classmethod
    @abstractmethod
    def grammar(cls, forcing: Forcing) -> str:
        """What the whole answer must be where calls are forced. Raises RequestError where that cannot be said."""

    @abstractmethod
    def _text(self, char: str) -> None:
        """The state outside of calls."""

    def _read(self, reader: CallReader, char: str) -> None:
        """Give ``char`` to ``reader`` and say what it makes of it."""
        self._raw += char
        for piece in reader.add(char):
            self._say(*piece)
        if reader.begun:
            self._raw = ""

    def _read_object(self, reader: CallReader, char: str, behind: Callable[[str], None]) -> None:
        """The same; ``behind`` follows a whole object, and what breaks off is content."""
        self._read(reader, char)
        if reader.done:
            self._state = behind
        elif reader.broken:
            self._give_up()

    def _give_up(self) -> None:
        """What was read is no call: it is content."""
        self._say("content", self._raw)
        self._raw = ""
        self._state = self._text


class MarkedParser(ToolParser):
    """Of a format in which calls are marked, so that they may stand anywhere, with any name. Space before a call and
    behind it is left out. A subclass says what follows a marker: ``_enter``."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._watch = type(self)._new_watch()

    @classmethod
    def _new_watch(cls, behind_call: bool = False) -> Watch:
        return Watch(cls.markers[0], skip=behind_call)

    def _start(self, char: str) -> None:
        self._text(char)

    def _text(self, char: str) -> None:
        out, marker = self._watch.add(char)
        self._say("content", out)
        if marker:
            self._raw = self._watch.dropped + marker
            self._enter()

    @abstractmethod
    def _enter(self) -> None:
        """A marker has been read."""

    def _leave(self) -> None:
        """A call has ended."""
        self._raw = ""
        self._watch, self._state = self._new_watch(behind_call=True), self._text

    def _finish(self) -> None:
        self._say("content", self._raw + self._watch.rest())
        self._raw = ""
