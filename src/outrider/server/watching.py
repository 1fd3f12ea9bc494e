"""Calls are watched from their arrival to their last byte, and those who keep records told of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastapi import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.telemetry.calls import Call, Watcher, headers_of

log = logging.getLogger(__name__)
_KEY = "outrider_call"


class Watching:
    """Tells ``watchers`` of every call that has ended, whatever came of it."""

    def __init__(self, app: ASGIApp, watchers: Sequence[Watcher]) -> None:
        self._app, self._watchers = app, watchers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve and watch."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call, status = Call(scope["method"], headers_of(scope["headers"])), 500
        scope.setdefault("state", {})[_KEY] = call

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            call.end(getattr(scope.get("route"), "path", "unknown"), status)  # not the path: there is no end of those
            for watcher in self._watchers:
                self._tell(watcher, call)

    @staticmethod
    def _tell(watcher: Watcher, call: Call) -> None:
        try:
            watcher(call)
        except Exception as error:  # a full disk must not end answers
            log.warning("call %s is not recorded: %r", call.answer_id, error)


def call_of(http: HttpRequest) -> Call:
    """The call that is being served."""
    call: Call = http.scope["state"][_KEY]
    return call
