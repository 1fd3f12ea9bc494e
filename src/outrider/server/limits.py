"""How long a body may be: what is longer is refused while it comes in, before it is in memory as a whole."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Answers 413 to a body of more than ``max_bytes``, whatever its headers say about its length."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request within the limit."""
        came = 0

        async def counted() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self._max:
                raise HTTPException(
                    413, f"the body is longer than {self._max} bytes: shorten it, or raise --max-request-bytes"
                )
            return message

        await self._app(scope, counted if scope["type"] == "http" else receive, send)
