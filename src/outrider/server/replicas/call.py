"""An HTTP request that one process takes and another one answers, with the application of a single server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Call:
    """A whole request. ``prefix``: names of what its prompt begins with (``prefixes.names``), for the router."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    prefix: tuple[bytes, ...] = ()
    root_path: str = ""  # under which the application is mounted

    def scope(self) -> dict[str, Any]:
        """What an ASGI application is told about it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": self.root_path,
            "query_string": self.query,
            "headers": self.headers,
            "client": None,
            "server": None,
        }


@dataclass(frozen=True, slots=True)
class Head:
    """How an answer begins."""

    status: int
    headers: Headers


async def answer(app: ASGIApp, call: Call) -> AsyncIterator[Head | bytes]:
    """What ``app`` answers: its head, then its body in parts. Closing the iterator is the client's leaving."""
    sent: asyncio.Queue[Message | None] = asyncio.Queue()
    task = asyncio.create_task(_run(app, call, sent))
    try:
        while (message := await sent.get()) is not None:
            if message["type"] == "http.response.start":
                yield Head(message["status"], list(message["headers"]))
            elif message.get("body"):
                yield message["body"]
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _run(app: ASGIApp, call: Call, sent: asyncio.Queue[Message | None]) -> None:
    asked = False

    async def receive() -> Message:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()  # a client that leaves ends the task
        asked = True
        return {"type": "http.request", "body": call.body, "more_body": False}

    try:
        await app(call.scope(), receive, sent.put)
    except Exception:  # the application has answered 500 by now
        log.exception("%s %s failed", call.method, call.path)
    finally:
        sent.put_nowait(None)
