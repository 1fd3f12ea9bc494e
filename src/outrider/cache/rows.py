"""Rows of a sequence that come in a few at a time, for those who need them in one piece."""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST = 64  # rows that there is room for at least


class Rows:
    """One tensor, which doubles when it is full."""

    def __init__(self) -> None:
        self._data: Tensor | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Tensor) -> None:
        """Append rows [count, width]; the first ones say the width and the type."""
        end = self._count + len(rows)
        if self._data is None or end > len(self._data):
            data = rows.new_empty(max(2 * self._count, end, _FIRST), rows.shape[1])
            if self._data is not None:
                data[: self._count] = self.all()
            self._data = data
        self._data[self._count : end] = rows
        self._count = end

    def cut(self, length: int) -> None:
        """Forget what lies behind ``length`` rows."""
        self._count = min(self._count, length)

    def all(self) -> Tensor:
        """[rows, width], valid until the next ``add``."""
        return torch.empty(0) if self._data is None else self._data[: self._count]
