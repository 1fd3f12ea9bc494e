"""How long a step may take: prompt chunks beside decoding are cut to it, and a latency target bounds the batch."""

from __future__ import annotations

from typing import Protocol

_STEP = 0.1  # seconds that a step with decoding sequences and prompt chunks may take, unless there is a target
_RUSH = 2.5  # times that, where so many more prompts are to be read than sequences decode
_BESIDE = 2.0  # where decoding alone takes long, chunks may take as long again
_LEAST = 16  # rows of a chunk: prompts get on, however slow the model is
_WEIGHT = 0.3  # of the latest chunk in the mean
_SURE = 0.25  # of a step's time is the prompt rows' at least, whatever decoding was thought to take


class Costs(Protocol):
    """What the planner knows of time."""

    def step_seconds(self, num_rows: int) -> float:
        """Seconds of a step with so many rows."""
        ...

    def going_rate(self, num_sequences: int) -> float:
        """Tokens per second at which so many sequences have come on of late, all together."""
        ...


class Pacing:
    """Bounds the time between two tokens of a running sequence. ``target``: seconds per token that running sequences
    are to keep, None for no target."""

    def __init__(self, costs: Costs, target: float | None = None) -> None:
        self._costs, self._target = costs, target
        self._row = 0.0  # seconds of a prompt row; 0 until one was computed

    def chunk_rows(self, num_decoding: int, num_reading: int = 0) -> int:
        """Rows of prompts that a step has time for, of ``num_reading`` sequences that have a place, beside so many that
        decode. The few wait a little longer for the many: without that a crowd comes in by drops and runs half full."""
        decoding = self._costs.step_seconds(num_decoding)
        row = self._row or (self._costs.step_seconds(64) - self._costs.step_seconds(32)) / 32
        bound = self._target or _STEP * min(_RUSH, max(1.0, num_reading / max(1, num_decoding)))
        return max(_LEAST, int((max(bound, _BESIDE * decoding) - decoding) / max(row, 1e-9)))

    def admits(self, num_running: int) -> bool:
        """Whether one more sequence may run beside so many: the target holds with it, or nothing runs."""
        if self._target is None or not num_running:
            return True
        count = num_running + 1
        return count / self._costs.going_rate(count) <= self._target

    def observe(self, decode_rows: int, chunk_rows: int, seconds: float) -> None:
        """A step computed so many rows of decoding sequences (roots and drafts) and of prompt chunks in ``seconds``.
        A prompt row's price is what it adds to a step: reading the weights is paid by the rows that decode."""
        if chunk_rows >= _LEAST:
            added = seconds - self._costs.step_seconds(max(1, decode_rows))
            row = max(added, _SURE * seconds) / chunk_rows
            self._row += _WEIGHT * (row - self._row) if self._row else row
