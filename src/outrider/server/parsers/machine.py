"""State machines over characters: what they make of a text does not depend on how the text is cut into parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

Kind = Literal["content", "reasoning", "call", "arguments"]


class Piece(NamedTuple):
    """A part of an answer. ``call`` begins a tool call and holds its name; ``arguments`` are those of the call that was
    begun last, in JSON."""

    kind: Kind
    text: str


class Machine(ABC):
    """Takes a text in parts and says pieces; those of one kind that follow each other add up, but for ``call``."""

    def __init__(self) -> None:
        self._said: list[tuple[Kind, list[str]]] = []
        self._state: Callable[[str], None] = self._start

    def feed(self, text: str) -> list[Piece]:
        """What ``text`` makes certain."""
        for char in text:
            self._state(char)
        return self._take()

    def end(self) -> list[Piece]:
        """The text is over: what was held back."""
        self._finish()
        return self._take()

    @abstractmethod
    def _start(self, char: str) -> None:
        """The first state: a character of the text."""

    @abstractmethod
    def _finish(self) -> None:
        """Say what is held back."""

    def _say(self, kind: Kind, text: str) -> None:
        if kind == "call" or (text and (not self._said or self._said[-1][0] != kind)):
            self._said.append((kind, [text]))
        elif text:
            self._said[-1][1].append(text)

    def _take(self) -> list[Piece]:
        out = [Piece(kind, "".join(parts)) for kind, parts in self._said]
        self._said.clear()
        return out


class Watch:
    """Looks for markers in a text. Space before a marker belongs to it, so space is held back, and so is what may be
    the beginning of a marker. ``skip``: leave out space until something else comes. ``dropped``: the space before the
    last marker."""

    def __init__(self, *markers: str, skip: bool = False) -> None:
        self._markers, self._skip = markers, skip
        self._space = self._part = self.dropped = ""

    def add(self, char: str) -> tuple[str, str]:
        """The text that is no part of a marker after all, and the marker that ``char`` completes; either may be
        empty."""
        if not self._part and char.isspace():
            self._space += "" if self._skip else char
            return "", ""
        self._skip = False
        self._part += char
        out = ""
        while self._part:
            if self._part in self._markers:
                marker, self.dropped = self._part, self._space
                self._space = self._part = ""
                return out, marker
            if any(marker.startswith(self._part) for marker in self._markers):
                break
            out += self._space + self._part[0]
            rest = self._part[1:]
            self._part = rest.lstrip()
            self._space = rest[: len(rest) - len(self._part)]
        return out, ""

    def rest(self) -> str:
        """What is held back."""
        out = self._space + self._part
        self._space = self._part = ""
        return out
