"""The thread that owns the engine: requests come in by a queue, and what a step made of them goes out to listeners."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.closing import Closing
from outrider.engine.requests import Request
from outrider.errors import OutriderError
from outrider.llm import LLM
from outrider.outputs import RequestOutput, StreamChunk
from outrider.telemetry.counters import Counters

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Event:
    """News of a request. ``chunks``: what one step added; ``output``: all of it, with the last event only; ``error``:
    why it failed, with the last event only."""

    chunks: list[StreamChunk] = field(default_factory=list)
    output: RequestOutput | None = None
    error: Exception | None = None

    @property
    def last(self) -> bool:
        """No more will come."""
        return self.output is not None or self.error is not None


Listener = Callable[[Event], None]  # called on the engine's thread: it must not block


class Busy(OutriderError):
    """The queue is full. ``retry_after``: seconds after which there should be room."""

    def __init__(self, waiting: int, retry_after: float) -> None:
        super().__init__(f"{waiting} requests are waiting already: try again in {retry_after:.0f} seconds")
        self.retry_after = retry_after


class Stopped(OutriderError):
    """The server is shutting down, or its engine has failed."""


class TimedOut(OutriderError):
    """A request did not end within its time."""


@dataclass(slots=True)
class _Job:
    request: Request
    listener: Listener
    finish_by: float | None = None  # time.monotonic
    arrival: float = field(default_factory=time.perf_counter)


class Runner(Closing):
    """Steps an ``LLM`` in a thread of its own while there are requests. ``max_waiting``: requests that may queue."""

    def __init__(self, llm: LLM, max_waiting: int = 512) -> None:
        self.llm, self.max_waiting = llm, max_waiting
        self._inbox: queue.SimpleQueue[_Job | Request | None] = queue.SimpleQueue()  # to start, to abort, the end
        self._lock = threading.Lock()  # of the three below
        self._num_requests, self._open, self._failure = 0, True, ""
        self._jobs: dict[str, _Job] = {}  # the engine's thread's own, as all below
        self._began: float | None = None  # of the current step
        self.counters = Counters(llm.methods)
        llm.meter(self.counters)
        self._seconds_per_request = 1.0
        self._thread = threading.Thread(target=self._work, name="outrider-engine", daemon=True)
        self._thread.start()

    @property
    def num_requests(self) -> int:
        """Requests that are running or waiting."""
        return self._num_requests

    @property
    def failure(self) -> str:
        """Why the engine stopped for good, or nothing."""
        return self._failure

    @property
    def open(self) -> bool:
        """Whether requests are taken."""
        return self._open

    def step_seconds(self) -> float:
        """How long the current step takes already; 0 between steps."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def submit(self, request: Request, listener: Listener, timeout: float | None = None) -> None:
        """Queue ``request``, from any thread. ``timeout``: seconds after which it is ended wherever it is. Raises Busy
        and Stopped."""
        with self._lock:
            if not self._open:
                raise Stopped(self._failure or "the server is shutting down")
            running = self.llm.max_num_seqs
            waiting = self._num_requests - running
            if waiting >= self.max_waiting:
                raise Busy(waiting, max(1.0, waiting / running * self._seconds_per_request))
            self._num_requests += 1
            self._inbox.put(_Job(request, listener, None if timeout is None else time.monotonic() + timeout))

    def abort(self, request: Request) -> None:
        """End ``request``, from any thread; nothing happens when it has ended."""
        self._inbox.put(request)

    def drain(self, seconds: float) -> bool:
        """Take no more requests and wait for those that are there; whether all have ended in time."""
        with self._lock:
            self._open = False
        until = time.monotonic() + seconds
        while self._num_requests and time.monotonic() < until:
            time.sleep(0.02)
        return not self._num_requests

    def close(self) -> None:
        """End all requests and the thread."""
        self._inbox.put(None)
        self._thread.join()

    def _work(self) -> None:
        try:
            while self._read_inbox():
                self._expire()
                if self.llm.has_work:
                    self._began = time.monotonic()
                    self.llm.step()
                    self._began = None
                    self._publish()
        except Exception as error:  # a bug of ours: tell everyone, and let health checks see it
            log.exception("the engine failed")
            self._failure = f"the engine failed: {error!r}"
        finally:
            self._began = None
            self._dismiss()

    def _dismiss(self) -> None:
        """Nobody will be served any more: tell those who wait."""
        with self._lock:
            self._open = False
        reason = Stopped(self._failure or "the server is shutting down")
        while not self._inbox.empty():
            if isinstance(item := self._inbox.get(), _Job):
                self._jobs[item.request.request_id] = item
        for job in list(self._jobs.values()):
            if not self._failure:
                job.request.abort()
            self._leave(job, Event(error=reason))

    def _read_inbox(self) -> bool:
        """Start and abort what is asked for; wait while there is nothing to do. False: it is time to stop."""
        while True:
            try:
                item = self._inbox.get(block=not self.llm.has_work)
            except queue.Empty:
                return True
            if item is None:
                return False
            if isinstance(item, _Job):
                self._jobs[item.request.request_id] = item
                item.request.start(item.arrival)
            elif (job := self._jobs.get(item.request_id)) is not None:
                item.abort()
                self._leave(job, Event(output=item.output()))

    def _expire(self) -> None:
        now = time.monotonic()
        for job in [job for job in self._jobs.values() if job.finish_by is not None and job.finish_by <= now]:
            job.request.abort()
            self._leave(job, Event(job.request.chunks(), error=TimedOut("the request ran out of its time")))

    def _publish(self) -> None:
        """Tell every listener what the step made."""
        for job in list(self._jobs.values()):
            chunks = job.request.chunks()
            if job.request.finished:
                failure = job.request.failure
                self._leave(job, Event(chunks, None if failure else job.request.output(), failure))
            elif chunks:
                job.listener(Event(chunks))

    def _leave(self, job: _Job, event: Event) -> None:
        del self._jobs[job.request.request_id]
        self.counters.ended(job.request)
        taken = time.perf_counter() - job.request.sequences[0].arrival
        self._seconds_per_request += 0.1 * (taken - self._seconds_per_request)
        with self._lock:
            self._num_requests -= 1
        job.listener(event)
