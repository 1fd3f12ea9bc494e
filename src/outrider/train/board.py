"""A run's log for TensorBoard, beside the JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.closing import Closing
from outrider.errors import ConfigError
from outrider.train.fit import Line

_MISSING = "--tensorboard needs tensorboard: pip install 'outrider[tensorboard]'"


class Board(Closing):
    """Writes lines as scalars into ``folder``; a run that goes on continues its curves.

    Raises ConfigError where TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(_MISSING) from None
        self._writer: Any = SummaryWriter(str(folder))

    def add(self, line: Line) -> None:
        """All figures of a line at its step."""
        split = line.split.replace(" ", "_")
        figures = {"loss": line.loss, "lr": line.lr, "acceptance_length": line.length}
        figures |= {f"acceptance/{place}": value for place, value in enumerate(line.acceptance, start=1)}
        figures |= {} if line.kl is None else {"kl": line.kl}
        figures |= {f"engine/{name}": value for name, value in line.engine.items()}
        for name, value in figures.items():
            self._writer.add_scalar(f"{split}/{name}", value, line.step)

    def close(self) -> None:
        """Write what is not on disk yet."""
        self._writer.close()
