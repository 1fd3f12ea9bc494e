"""What every draft head has: a draft vocabulary, an unrolled forward for training, a start from its target.

Row t of a head sees the token at t + 1 and the target's feature of position t. Its step k says what token t + 2 + k
is, with the tokens up to t + 1 + k known; so all heads learn from the same batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from outrider.heads.config import HeadConfig


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """embedding [vocab, hidden], scaled as the model scales it; head [vocab, hidden]; norm [hidden]; ``block``: the
    last decoder layer; ``eos_ids``: tokens that end an answer."""

    embedding: Tensor
    head: Tensor
    norm: Tensor
    block: Any
    config: Any
    eos_ids: frozenset[int]


class DraftHead(nn.Module, ABC):
    """A head as it is trained. ``d2t`` [draft vocab]: target id minus draft id; ``t2d`` [vocab]: ids it knows.

    ``feature_weight``: of the distance between its output and the target's next feature in the loss, beside the law's
    weight of one.
    """

    feature_weight: ClassVar[float] = 0.0
    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.set_vocabulary(torch.arange(config.draft_vocab_size))

    def set_vocabulary(self, ids: Tensor) -> None:
        """``ids`` [draft vocab]: the target ids that it can draft, ascending."""
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_()
        self.t2d[ids] = True

    @property
    def target_ids(self) -> Tensor:
        """The target id of every draft id."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    @abstractmethod
    def unroll(self, embedded: Tensor, features: Tensor, steps: int, start: int = 0) -> Iterator[Tensor]:
        """The hidden states [batch, rows - start, hidden] of at most ``steps`` steps; ``logits`` makes laws of them.

        embedded [batch, rows, hidden]: of the token one behind each row's feature; features [batch, rows, width]. Rows
        before ``start`` are looked at alone. In step k the last k rows lack a token and mean nothing.
        """

    @abstractmethod
    def vocabulary(self, step: int) -> nn.Linear:
        """The matrix that makes step ``step``'s logits [draft vocab]."""

    def leave(self, hidden: Tensor) -> Tensor:
        """What that matrix sees of a hidden state [..., hidden]."""
        return hidden

    def logits(self, hidden: Tensor, step: int = 0) -> Tensor:
        """[..., hidden] of step ``step`` -> [..., draft vocab]."""
        out: Tensor = self.vocabulary(step)(self.leave(hidden))
        return out

    @abstractmethod
    def start(self, target: TargetWeights, generator: torch.Generator) -> None:
        """Take over what the target's weights give; the vocabulary is set."""
