"""Progress of a run on stderr: one line that is rewritten on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
import time


class TerminalProgress:
    """Called with (done, total, what); says how far the run is and about how long it will take."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._began = time.monotonic()
        self._shown = sys.stderr.isatty()

    def __call__(self, done: int, total: int, what: str) -> None:
        if not self._shown:
            return
        left = (time.monotonic() - self._began) / done * (total - done)
        end = "\r\x1b[K" if done == total else ""
        sys.stderr.write(f"\r\x1b[K{self._title}: {done}/{total} prompts, {what}, about {left:.0f} s left{end}")
        sys.stderr.flush()
