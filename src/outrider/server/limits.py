"""The gate in front of all routes: who may send a body, which is asked before any of it is read, and how long it may
be, which is known before it is in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Gate:
    """``admit`` raises HTTPException for a caller whose body is not to be read. A body of more than ``max_bytes`` gets
    413, whatever its headers say about its length."""

    def __init__(self, app: ASGIApp, max_bytes: int, admit: Callable[[Request], object]) -> None:
        self._app, self._max, self._admit = app, max_bytes, admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request within the limit."""
        came, asked = 0, False

        async def counted() -> Message:
            nonlocal came, asked
            if not asked and scope["method"] == "POST":
                asked = True
                self._admit(Request(scope))
            message = await receive()
            came += len(message.get("body", b""))
            if came > self._max:
                raise HTTPException(
                    413, f"the body is longer than {self._max} bytes: shorten it, or raise --max-request-bytes"
                )
            return message

        await self._app(scope, counted if scope["type"] == "http" else receive, send)
