"""Streaming an answer to a terminal: drafted tokens coloured there, plain text everywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from outrider.outputs import StreamChunk

DRAFTED = "\x1b[36m"  # cyan
RESET = "\x1b[0m"
Decode = Callable[[Sequence[int]], str]


def colours(stream: TextIO) -> bool:
    """Whether to colour: a terminal, and NO_COLOR is not set."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


@dataclass(slots=True)
class Answer:
    """A streamed answer and what it took. A chunk is a step: the first one is the prefill's token."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    num_from_draft: int = 0
    num_chunks: int = 0
    num_first_tokens: int = 0
    finish_reason: str | None = None
    seconds: float = 0.0
    first_token_seconds: float = 0.0

    def add(self, chunk: StreamChunk) -> None:
        """Append what one step brought."""
        self.text += chunk.text
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if chunk.token_ids:
            self.num_first_tokens = self.num_first_tokens or len(chunk.token_ids)
            self.num_chunks += 1
            self.num_from_draft += sum(chunk.from_draft)
            self.token_ids += chunk.token_ids

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first per second after the first: prefill apart."""
        after = self.seconds - self.first_token_seconds
        tokens = len(self.token_ids) - self.num_first_tokens
        return tokens / after if after > 0 and tokens > 0 else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens after the first / steps after prefill; 1.0 when there was no such step."""
        steps = self.num_chunks - 1
        return (len(self.token_ids) - self.num_first_tokens) / steps if steps > 0 else 1.0

    def line(self) -> str:
        """The statistics in one line."""
        parts = [f"{len(self.token_ids)} tokens", f"{self.tokens_per_second:.1f} tokens/s"]
        parts.append(f"first token after {self.first_token_seconds * 1000:.0f} ms")
        if self.num_from_draft:
            parts.append(f"{self.num_from_draft} from drafts")
            parts.append(f"mean acceptance length {self.mean_acceptance_length:.2f}")
        if self.finish_reason not in (None, "stop"):
            parts.append(f"ended by {self.finish_reason}")
        return " | ".join(parts)


def play(chunks: Iterable[StreamChunk], out: TextIO | None = None, decode: Decode | None = None) -> Answer:
    """Print ``chunks`` as they come and return the answer. ``out`` is stdout by default.

    ``decode`` finds, for the colours, where the text of a step's own token begins behind its drafted tokens. Ctrl-C
    ends the answer where it is, closes the stream, which frees the request, and is not passed on.
    """
    out = out or sys.stdout
    colour = colours(out)
    answer, began = Answer(), perf_counter()
    try:
        for chunk in chunks:
            if chunk.token_ids and not answer.token_ids:
                answer.first_token_seconds = perf_counter() - began
            answer.add(chunk)
            out.write(_coloured(chunk, decode) if colour else chunk.text)
            out.flush()
    except KeyboardInterrupt:
        answer.finish_reason = "interrupt"
    finally:
        answer.seconds = perf_counter() - began
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
    return answer


def _coloured(chunk: StreamChunk, decode: Decode | None) -> str:
    if not chunk.text or not any(chunk.from_draft):
        return chunk.text
    own = [token for token, drafted in zip(chunk.token_ids, chunk.from_draft, strict=True) if not drafted]
    tail = decode(own) if decode is not None and own else ""
    head = chunk.text.removesuffix(tail)  # held-back text or half a character: then all of it is coloured
    return f"{DRAFTED}{head}{RESET}{chunk.text[len(head) :]}" if head else chunk.text
