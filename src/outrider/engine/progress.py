"""A progress bar over finished sequences, on standard error, when the work takes more than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PATIENCE = 2.0


@contextmanager
def progress_bar(total: int, enabled: bool) -> Iterator[Callable[[int], None]]:
    """``update(done)`` within; nothing is shown on a pipe, or before two seconds have passed."""
    if not enabled or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task("sequences", total=total)
    begin = time.perf_counter()
    state = {"shown": False}

    def update(done: int) -> None:
        if not state["shown"] and time.perf_counter() - begin > _PATIENCE:
            bar.start()
            state["shown"] = True
        if state["shown"]:
            bar.update(task, completed=done)

    try:
        yield update
    finally:
        if state["shown"]:
            bar.stop()
