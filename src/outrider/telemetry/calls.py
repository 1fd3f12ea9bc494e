"""One call of a client, as those see it who keep a record of it: its route, its outcome and what its requests did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.engine.requests import Request
from outrider.engine.sequence import Sequence as EngineSequence
from outrider.telemetry.counters import PLAIN


@dataclass(slots=True)
class Call:
    """A call from its arrival on (``arrived``: seconds since the epoch). ``requests`` are those that it queued, with
    ``answer_id``; a call that was refused has none. ``headers``: names in small letters. Sums are over all samples, and
    final once it has ended."""

    method: str
    headers: Mapping[str, str] = field(default_factory=dict)
    route: str = ""
    status: int = 0
    answer_id: str | None = None
    requests: Sequence[Request] = ()
    arrived: float = field(default_factory=time.time)
    seconds: float = 0.0
    _began: float = field(default_factory=time.perf_counter)

    def end(self, route: str, status: int) -> None:
        """The last byte was sent, or the client has left."""
        self.route, self.status, self.seconds = route, status, time.perf_counter() - self._began

    @property
    def samples(self) -> list[EngineSequence]:
        """Those of all requests."""
        return [seq for request in self.requests for seq in request.sequences]

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt counts once."""
        return sum(len(request.prompt_token_ids) for request in self.requests)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache had."""
        return self._sum(lambda seq: seq.stats.num_cached_tokens)

    @property
    def num_tokens(self) -> int:
        """That the answers have."""
        return self._sum(lambda seq: len(seq.output_ids))

    @property
    def finish_reasons(self) -> list[str]:
        """Of every sample; one that was left before its end counts as aborted."""
        return [seq.finish_reason or "abort" for seq in self.samples]

    @property
    def speculation(self) -> str | None:
        """The method that drafted, `plain` for none; None for a call that queued nothing."""
        return next((seq.method or PLAIN for seq in self.samples), None)

    @property
    def temperature(self) -> float | None:
        """Of its sampling; None for a call that queued nothing."""
        return next((seq.params.temperature for seq in self.samples), None)

    @property
    def num_drafts(self) -> int:
        """Drafts that were verified."""
        return self._sum(lambda seq: seq.stats.num_spec_steps)

    @property
    def num_draft_tokens(self) -> int:
        """Tokens of theirs."""
        return self._sum(lambda seq: seq.stats.num_draft_tokens)

    @property
    def num_accepted_tokens(self) -> int:
        """Those of them that were accepted."""
        return self._sum(lambda seq: seq.stats.num_accepted_draft_tokens)

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted tokens; None without any."""
        drafted = self.num_draft_tokens
        return self.num_accepted_tokens / drafted if drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """vLLM's mean acceptance length: 1 + accepted tokens / drafts; None without any."""
        drafts = self.num_drafts
        return 1.0 + self.num_accepted_tokens / drafts if drafts else None

    @property
    def draft_seconds(self) -> float:
        """In which drafters proposed for it."""
        return sum(seq.stats.draft_seconds for seq in self.samples)

    @property
    def queue_seconds(self) -> float | None:
        """From its arrival to the first prefill; None where there was none."""
        return min((seq.stats.queue_seconds for seq in self.samples if seq.output_ids), default=None)

    @property
    def time_to_first_token(self) -> float | None:
        """In seconds; None where no token came."""
        return min((seq.stats.time_to_first_token for seq in self.samples if seq.output_ids), default=None)

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds of a token of a sample after its first; None where there was no second one."""
        longest = max((len(seq.output_ids) for seq in self.samples), default=0)
        first = self.time_to_first_token
        return None if first is None or longest < 2 else max(0.0, self.seconds - first) / (longest - 1)

    def _sum(self, count: Callable[[EngineSequence], int]) -> int:
        return sum(map(count, self.samples))


Watcher = Callable[[Call], Any]  # told of calls that have ended; it must not block


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as ASGI hands them in, as text."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}
