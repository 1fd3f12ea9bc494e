"""What head drafters remember of a sequence, the target's features, and how their laws become its vocabulary's."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.heads.config import HeadConfig
from outrider.target.model import Target

_FIRST = 64  # rows that there is room for at least


class Rows:
    """Rows that come in a few at a time, in one tensor that doubles when it is full."""

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


class Features:
    """The target's features of a sequence's first positions: one row for each whose next token is known.

    ``extra``: the outputs that come in have the target's last layer behind those that the head reads.
    """

    def __init__(self, target: Target, config: HeadConfig, hidden: Tensor | None, extra: bool = False) -> None:
        """``hidden`` [positions, layers * hidden]: outputs of the layers, for the prompt."""
        self._target, self._normed = target, config.normed
        self._width = len(config.hidden_layers) * config.hidden_size
        self._own = Rows()
        self._last = Rows() if extra else self._own
        if hidden is not None:
            self.add(hidden)

    def add(self, hidden: Tensor) -> None:
        """Those of further positions."""
        own = hidden[:, : self._width]
        self._own.add(self._target.normed(own) if self._normed else own)
        if self._last is not self._own:
            self._last.add(self._target.normed(hidden[:, self._width :]))

    def rows(self) -> Tensor:
        """[positions, width]."""
        return self._own.all()

    def last(self) -> Tensor:
        """The normed last hidden states [positions, hidden]."""
        return self._last.all()

    def cut(self, length: int) -> None:
        """Forget what lies behind ``length`` positions."""
        self._own.cut(length)
        self._last.cut(length)

    def __len__(self) -> int:
        return len(self._own)


def spread(logits: Tensor, ids: Tensor, vocab_size: int) -> Tensor:
    """Logits over a draft vocabulary [rows, draft vocab] -> [rows, vocab], -infinity where the head has no row."""
    full = logits.new_full((len(logits), vocab_size), -torch.inf)
    full[:, ids] = logits
    return full
