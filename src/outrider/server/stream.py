"""The way of an answer from the engine's thread to a client, who may leave before it ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from fastapi.responses import StreamingResponse
from starlette.types import Message, Send

from outrider.engine.requests import Request
from outrider.outputs import RequestOutput
from outrider.server.runner import Event, Runner

log = logging.getLogger(__name__)
T = TypeVar("T")
DONE = "data: [DONE]\n\n"


class EventStream(StreamingResponse):
    """Events for a client. One that takes none of them for ``patience`` seconds is cut off, and its request ends: what
    it has not read is kept meanwhile, and holds up nobody else."""

    patience = 60.0

    def __init__(self, events: AsyncGenerator[str]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events = events

    async def stream_response(self, send: Send) -> None:
        """Called by Starlette."""

        async def within(message: Message) -> None:
            await asyncio.wait_for(send(message), self.patience)

        try:
            await super().stream_response(within)
        except TimeoutError:
            log.warning("a client took nothing for %.0f s: its stream is cut off", self.patience)
        finally:
            await self._events.aclose()


class Gone(Exception):
    """The client has left."""


class Answer:
    """Several requests of one call, queued together. Iterate over (number of the request, event); ``close`` ends what
    still runs."""

    def __init__(self, runner: Runner, requests: Sequence[Request], timeout: float | None) -> None:
        """Queue ``requests``. Raises what ``Runner.submit`` raises, and then none of them runs."""
        self._runner, self._requests = runner, requests
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._left = 0
        try:
            for number, request in enumerate(requests):
                runner.submit(request, partial(self._tell, number), timeout)
                self._left += 1
        except Exception:
            self.close()
            raise

    def _tell(self, number: int, event: Event) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (number, event))

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        while self._left:
            number, event = await self._queue.get()
            self._left -= event.last
            yield number, event

    async def whole(self, http: HttpRequest) -> list[RequestOutput]:
        """All answers. Raises the first one's error, and Gone when the client leaves before; then nothing runs on."""
        try:
            return await _while_there(http, self._outputs())
        finally:
            self.close()

    async def _outputs(self) -> list[RequestOutput]:
        out: dict[int, RequestOutput] = {}
        async for number, event in self:
            if event.error is not None:
                raise event.error
            if event.output is not None:
                out[number] = event.output
        return [out[number] for number in range(len(out))]

    def close(self) -> None:
        """End what still runs."""
        for request in self._requests:
            self._runner.abort(request)


def sse(data: dict[str, Any]) -> str:
    """An event of a stream."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def _while_there(http: HttpRequest, work: Awaitable[T]) -> T:
    """What ``work`` returns. Raises Gone, and cancels it, when the client leaves before."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Gone
    finally:
        task.cancel()
        gone.cancel()


async def _gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
