"""What head drafters remember of a sequence, the target's features, and how their laws become its vocabulary's."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.cache.rows import Rows
from outrider.heads.config import HeadConfig
from outrider.target.model import Target


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
