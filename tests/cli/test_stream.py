"""Streaming to a terminal."""

from __future__ import annotations

import io

import pytest

from outrider.cli import stream
from outrider.outputs import StreamChunk


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


CHUNKS = (
    StreamChunk("a", [1], [False]),
    StreamChunk("bcd", [2, 3, 4], [True, True, False]),
    StreamChunk("e", [5], [False], "length"),
)


def decode(token_ids):
    return "".join(" abcde"[token] for token in token_ids)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_only_drafted_text_is_coloured():
    out = Terminal()
    answer = stream.play(iter(CHUNKS), out, decode)
    assert out.getvalue() == f"a{stream.DRAFTED}bc{stream.RESET}de"
    assert (answer.text, answer.num_from_draft, answer.finish_reason) == ("abcde", 2, "length")
    assert " | 2 from drafts | " in answer.line()  # those that were kept; rejected ones are not counted here
    assert answer.mean_acceptance_length == 2.0


def test_text_that_is_held_back_still_counts_its_tokens():
    chunks = (StreamChunk("", [1], [False]), StreamChunk("ab", [2, 3], [True, False]), StreamChunk("c", [], [], "stop"))
    answer = stream.play(iter(chunks), Terminal(), decode)
    assert (answer.token_ids, answer.mean_acceptance_length) == ([1, 2, 3], 2.0)


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    stream.play(iter(CHUNKS), out)
    assert out.getvalue() == "abcde"


def test_interrupt_closes_the_stream():
    closed = []

    def chunks():
        try:
            yield CHUNKS[0]
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    answer = stream.play(chunks(), io.StringIO())
    assert (answer.text, answer.finish_reason, closed) == ("a", "interrupt", [True])


def test_an_empty_answer_has_a_line():
    answer = stream.play(iter(()), io.StringIO())
    assert answer.line().startswith("0 tokens | 0.0 tokens/s")
