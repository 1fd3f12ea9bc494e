"""The HTTP server's end: at the first signal no new requests are taken and those that run may finish."""

from __future__ import annotations

import logging
import threading
from types import FrameType

import uvicorn

from outrider.server.runner import Runner

log = logging.getLogger(__name__)


class DrainingServer(uvicorn.Server):
    """At the first SIGTERM or SIGINT new requests get 503 and ``/ready`` says so, while the address still answers; what
    runs may finish within ``seconds``. A second signal ends all at once."""

    def __init__(self, config: uvicorn.Config, runner: Runner, seconds: float) -> None:
        super().__init__(config)
        self._runner, self._seconds = runner, seconds
        self._draining = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the signal handlers."""
        if self._draining:
            self.should_exit = self.force_exit = True
            return
        self._draining = True
        threading.Thread(target=self._drain, name="outrider-drain", daemon=True).start()

    def _drain(self) -> None:
        left = self._runner.num_requests
        if left:
            log.warning("no new requests are taken; %d may finish within %.0f s", left, self._seconds)
        if not self._runner.drain(self._seconds):
            log.warning("%d requests did not finish in time and are ended", self._runner.num_requests)
        self.should_exit = True
