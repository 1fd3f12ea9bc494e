"""Who is told what a run does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.train.fit import Line


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told: ``progress(stage, done, total)``, ``line`` a line of the log, ``note`` a fact."""

    progress: Callable[[str, int, int], None]
    line: Callable[[Line, int], None]
    note: Callable[[str], None]


SILENT = Listener(lambda stage, done, total: None, lambda line, total: None, lambda text: None)
