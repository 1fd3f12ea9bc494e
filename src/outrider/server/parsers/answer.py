"""An answer taken apart: content, reasoning and tool calls, of the whole text or of what a step added."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from outrider.server.parsers.machine import Piece
from outrider.server.parsers.reasoning import ReasoningParser
from outrider.server.parsers.tools import ToolParser


@dataclass(slots=True)
class Call:
    """A tool call or a part of one; ``call_id`` and ``name`` stand in its first part only. ``arguments``: JSON."""

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Part:
    """What a text adds to an answer; of each call one entry at most."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


class AnswerParser:
    """Takes one sample's text in parts. ``one_call``: calls after the first are left out; ``shows_reasoning``: or it is
    left out."""

    def __init__(
        self,
        reasoning: ReasoningParser | None,
        tools: ToolParser | None,
        *,
        one_call: bool = False,
        shows_reasoning: bool = True,
    ) -> None:
        self._reasoning, self._tools = reasoning, tools
        self._most = 1 if one_call else None
        self._shows_reasoning = shows_reasoning
        self.num_calls = 0

    def feed(self, text: str, last: bool) -> Part:
        """What ``text`` adds; ``last``: nothing will follow."""
        pieces = self._pieces(text, last)
        out = Part()
        for kind, said in pieces:
            if kind == "content":
                out.content += said
            elif kind == "reasoning":
                out.reasoning += said if self._shows_reasoning else ""
            else:
                self._add_call(out, kind == "call", said)
        return out

    def _pieces(self, text: str, last: bool) -> Iterable[Piece]:
        pieces = [Piece("content", text)]
        if self._reasoning is not None:
            pieces = self._reasoning.feed(text) + (self._reasoning.end() if last else [])
        if self._tools is None:
            return pieces
        out: list[Piece] = []
        for piece in pieces:
            out += self._tools.feed(piece.text) if piece.kind == "content" else [piece]
        return out + (self._tools.end() if last else [])

    def _add_call(self, out: Part, begins: bool, said: str) -> None:
        assert self._tools is not None
        self.num_calls += begins
        if self._most is not None and self.num_calls > self._most:
            return
        index = self.num_calls - 1
        if begins:
            out.calls.append(Call(index, self._tools.new_id(), said))
        elif out.calls and out.calls[-1].index == index:
            out.calls[-1].arguments += said
        else:
            out.calls.append(Call(index, arguments=said))
