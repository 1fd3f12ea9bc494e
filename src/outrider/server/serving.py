"""The HTTP server: its address is taken before anything loads, and at its end running requests may finish."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from types import FrameType

import uvicorn

from outrider.errors import ConfigError
from outrider.server.runner import Runner

log = logging.getLogger(__name__)
_LAST_WORDS = 0.5  # seconds for what is said to those whose requests are ended


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the address; ``port`` 0 takes a free one. Raises ConfigError when it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"--port {port} of {host} is taken: end what listens there, or choose another one (--port 0 takes a "
                "free one)"
            ) from None
        known = {errno.EADDRNOTAVAIL: "this machine has no such address", errno.EACCES: "ports under 1024 need rights"}
        cause = known.get(error.errno or 0) or error.strerror or str(error)
        raise ConfigError(f"--host {host} --port {port} cannot be listened on: {cause}") from None


def url(host: str, taken: socket.socket) -> str:
    """Where a client finds it."""
    return f"http://{f'[{host}]' if ':' in host else host}:{taken.getsockname()[1]}"


class DrainingServer(uvicorn.Server):
    """At the first SIGTERM or SIGINT new requests get 503 and ``/ready`` says so, while the address still answers; what
    runs may finish within ``seconds``. What does not, or runs at a second signal, is ended with 503."""

    def __init__(self, config: uvicorn.Config, runner: Runner, seconds: float) -> None:
        super().__init__(config)
        self._runner, self._seconds = runner, seconds
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the signal handlers."""
        self._signals += 1
        if self._signals == 1:
            threading.Thread(target=self._drain, name="outrider-drain", daemon=True).start()

    def _drain(self) -> None:
        until = time.monotonic() + self._seconds
        if left := self._runner.num_requests:
            log.warning("no new requests are taken; %d running may finish within %.0f s", left, self._seconds)
        while not self._runner.drain(0.1) and self._signals == 1 and time.monotonic() < until:
            pass
        if left := self._runner.num_requests:
            log.warning("%d running did not finish and are ended", left)
        self._runner.close()  # tells everyone who waits
        time.sleep(_LAST_WORDS if left else 0.0)
        self.should_exit = True
