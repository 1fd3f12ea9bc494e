"""A progress bar on stderr for work that turns out to be slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

SHOW_AFTER = 2.0  # seconds


class LateBar:
    """Counts ``done`` of ``total``; draws a bar once the work has taken ``SHOW_AFTER`` seconds."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._began = time.monotonic()
        self._bar: _RichBar | None = None

    def update(self, done: float, total: float) -> None:
        """Tell how far the work is, in any unit."""
        if self._bar is None and time.monotonic() - self._began > SHOW_AFTER:
            self._bar = _RichBar(self._title).__enter__()
        if self._bar is not None:
            self._bar.update(done, total)

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)


class _RichBar:
    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        # a bar that is taken away leaves an empty line in a file or a pipe
        self._progress = Progress(console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()

    def update(self, done: float, total: float) -> None:
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def late_bar(title: str) -> Iterator[LateBar]:
    """A ``LateBar`` that is closed at the end of the block."""
    bar = LateBar(title)
    try:
        yield bar
    finally:
        bar.close()
