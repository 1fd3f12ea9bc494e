"""What a server counts: sums by method, and latencies of requests. The engine's thread adds, others take snapshots.

A draft token counts when it was proposed *and* verified, and only steps that verified one count as drafts, as in vLLM;
without speculation nothing of it is counted. Every sample of a request counts as a request, as in vLLM.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, TypeVar

from outrider.core.draft import Draft
from outrider.engine.requests import Request
from outrider.engine.sequence import Sequence as EngineSequence
from outrider.engine.step import StepTimes, Work
from outrider.telemetry.drift import DriftMonitor
from outrider.telemetry.histogram import Histogram

if TYPE_CHECKING:
    from outrider.telemetry.calls import Call

PLAIN = "plain"  # the method of sequences that have none
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
_STEP_SECONDS = (*(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1), *(0.25, 0.5, 1.0))
_WINDOW = 5  # seconds that "of late" means

T = TypeVar("T", "MethodCounts", "RequestCounts")


@dataclass(slots=True)
class MethodCounts:
    """Sums over the steps of one method's sequences. Positions are depths in the draft, from 0 on."""

    num_steps: int = 0  # of sequences after their prefill, with or without a draft
    num_drafts: int = 0  # those with one
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_prompt_tokens: int = 0
    num_tokens: int = 0  # that requests got
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    overhead_seconds: float = 0.0
    accepted_per_position: list[int] = field(default_factory=list)  # drafts of which more than i tokens were accepted
    tested_per_position: list[int] = field(default_factory=list)  # drafts with a candidate after i accepted tokens
    draft_latency: Histogram = field(default_factory=lambda: Histogram(_STEP_SECONDS))  # a step's, of all sequences
    drift: DriftMonitor = field(default_factory=lambda: DriftMonitor(learn=2000, limit=20.0))  # of all requests

    def add_draft(self, draft: Draft, path: Sequence[int]) -> None:
        """A draft was verified, and ``path`` of it accepted."""
        accepted = len(path)
        tested = accepted + _goes_on(draft, path[-1] if path else -1)
        self.num_drafts += 1
        self.num_draft_tokens += len(draft)
        self.num_accepted_tokens += accepted
        missing = tested - len(self.tested_per_position)
        if missing > 0:
            self.tested_per_position += [0] * missing
            self.accepted_per_position += [0] * missing
        for position in range(tested):
            self.tested_per_position[position] += 1
        for position in range(accepted):
            self.accepted_per_position[position] += 1
        self.drift.observe(accepted, tested)

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens."""
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float | None:
        """vLLM's: 1 + accepted tokens / drafts."""
        ratio = _ratio(self.num_accepted_tokens, self.num_drafts)
        return None if ratio is None else 1.0 + ratio

    @property
    def conditional_acceptance(self) -> list[float | None]:
        """By position: accepted where all before it was, and the draft went on."""
        pairs = zip(self.accepted_per_position, self.tested_per_position, strict=True)
        return [_ratio(accepted, tested) for accepted, tested in pairs]


@dataclass(slots=True)
class RequestCounts:
    """How requests ended, and how long they took, in seconds from their arrival on."""

    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0))
    num_query_tokens: int = 0  # of prompts that asked the prefix cache
    num_hit_tokens: int = 0  # that it had
    first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    between_tokens: Histogram = field(default_factory=lambda: Histogram(SECONDS))  # steps of a sequence that emit
    per_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))  # a request's mean, after the first
    whole: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    queue: Histogram = field(default_factory=lambda: Histogram(SECONDS))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All counts at one moment. ``calls``: by route and status; ``last_rows``: of the latest step, of which
    ``last_sequences`` had some."""

    methods: dict[str, MethodCounts]
    requests: RequestCounts
    calls: dict[tuple[str, int], int]
    num_steps: int
    last_rows: int
    last_sequences: int
    tokens_per_second: float  # of late
    uptime: float


class Counters:
    """Implements ``Meter``; the runner tells it of requests that end. ``methods``: those that are loaded."""

    def __init__(self, methods: Collection[str]) -> None:
        self._lock = threading.Lock()
        self._methods = {name: MethodCounts() for name in methods or (PLAIN,)}
        self._requests = RequestCounts()
        self._calls: dict[tuple[str, int], int] = {}
        self._num_steps = self._last_rows = self._last_sequences = 0
        self._recent = Recent(time.perf_counter())
        self._emitted: dict[int, float] = {}  # seq_id -> when it got its latest tokens
        self._began = time.perf_counter()

    def step(self, work: Sequence[Work], times: StepTimes) -> None:
        """Count a step."""
        with self._lock:
            self._num_steps += 1
            self._last_rows, self._last_sequences = times.num_rows, len(work)
            drafting: dict[str, float] = {}
            tokens = 0
            for item in work:
                name = item.seq.method or PLAIN
                counts = self._methods.get(name)
                if counts is None:
                    counts = self._methods[name] = MethodCounts()
                self._add(item, counts, item.num_rows / times.num_rows, times)
                tokens += item.num_committed
                if item.num_asked:
                    drafting[name] = drafting.get(name, 0.0) + item.draft_seconds
            self._recent.add(times.end, tokens)
            for name, seconds in drafting.items():
                self._methods[name].draft_latency.add(seconds)

    def _add(self, item: Work, counts: MethodCounts, share: float, times: StepTimes) -> None:
        seq = item.seq
        counts.num_tokens += item.num_committed
        if not item.decoding:
            counts.prefill_seconds += (times.verify + times.overhead) * share
            if item.num_committed:
                self._first_token(seq, counts, times.end)
            return
        counts.num_steps += 1
        counts.draft_seconds += item.draft_seconds
        counts.verify_seconds += times.verify * share
        counts.overhead_seconds += times.overhead * share
        if item.num_committed:
            self._requests.between_tokens.add(times.end - self._emitted.get(seq.seq_id, times.end))
            self._emitted[seq.seq_id] = times.end
        if item.walk is not None and len(item.draft):
            counts.add_draft(item.draft, item.walk.path)

    def _first_token(self, seq: EngineSequence, counts: MethodCounts, now: float) -> None:
        requests, stats = self._requests, seq.stats
        self._emitted[seq.seq_id] = now
        requests.first_token.add(stats.time_to_first_token)
        requests.queue.add(stats.queue_seconds)
        requests.num_query_tokens += seq.num_prompt_tokens
        requests.num_hit_tokens += stats.num_cached_tokens
        if seq.index == 0:
            counts.num_prompt_tokens += seq.num_prompt_tokens

    def ended(self, request: Request) -> None:
        """Count a request that has left the engine; samples without an end failed with it."""
        now = time.perf_counter()
        with self._lock:
            for seq in request.sequences:
                self._requests.finished[seq.finish_reason or "error"] += 1
                end = self._emitted.pop(seq.seq_id, None)
                self._requests.whole.add((now if end is None else end) - seq.arrival)
                if end is not None and len(seq.output_ids) > 1:
                    after = end - seq.arrival - seq.stats.time_to_first_token
                    self._requests.per_token.add(after / (len(seq.output_ids) - 1))

    def called(self, call: Call) -> None:
        """Count a client's call, whatever came of it."""
        key = call.route, call.status
        with self._lock:
            self._calls[key] = self._calls.get(key, 0) + 1

    def snapshot(self) -> Snapshot:
        """All counts as they are now; from any thread."""
        now = time.perf_counter()
        with self._lock:
            return Snapshot(
                methods={name: _copy(counts) for name, counts in self._methods.items()},
                requests=_copy(self._requests),
                calls=dict(self._calls),
                num_steps=self._num_steps,
                last_rows=self._last_rows,
                last_sequences=self._last_sequences,
                tokens_per_second=self._recent.rate(now),
                uptime=now - self._began,
            )


class Recent:
    """Tokens per second over the latest whole seconds, or over those since ``began``."""

    def __init__(self, began: float) -> None:
        self._first = int(began)
        self._seconds: list[int] = [-1] * (_WINDOW + 1)
        self._tokens: list[int] = [0] * (_WINDOW + 1)

    def add(self, now: float, tokens: int) -> None:
        """Count ``tokens`` at ``now`` seconds."""
        second = int(now)
        place = second % (_WINDOW + 1)
        if self._seconds[place] != second:
            self._seconds[place], self._tokens[place] = second, 0
        self._tokens[place] += tokens

    def rate(self, now: float) -> float:
        """Of the ``_WINDOW`` seconds before the current one."""
        end = int(now)
        start = max(self._first, end - _WINDOW)
        pairs = zip(self._seconds, self._tokens, strict=True)
        return sum(tokens for second, tokens in pairs if start <= second < end) / max(1, end - start)


def _goes_on(draft: Draft, node: int) -> bool:
    """Whether ``node`` has a child."""
    return node + 1 < len(draft) if draft.parents is None else node in draft.parents


def _copy(counts: T) -> T:
    values = {}
    for item in fields(counts):
        value = getattr(counts, item.name)
        values[item.name] = value.copy() if hasattr(value, "copy") else copy.copy(value)
    return type(counts)(**values)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
