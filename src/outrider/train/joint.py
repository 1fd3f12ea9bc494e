"""Medusa-2 (arXiv 2401.10774): heads and target learn together, so that the target's state says more of what comes.

The loss is KL(original || new) over the whole vocabulary, plus ``weight`` times the heads' loss, whose teacher is the
new target itself. The texts are the original's own answers and its law is known from the features, so that the
original is not asked again (self-distillation, section 2.3 of the paper). The target learns at a quarter of the heads'
rate, through an ``Adapter``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outrider.heads.base import DraftHead, TargetWeights
from outrider.train.adapter import Adapter
from outrider.train.batches import Batch
from outrider.train.entropy import cross_entropy
from outrider.train.features import FeatureStore
from outrider.train.fit import Fit, FitOptions, optimiser
from outrider.train.objective import ALONE, Losses
from outrider.train.workers import Workers

_SHARE = 0.25  # of the heads' learning rate
_ROWS = 512  # whose whole law is held at once


@dataclass(frozen=True, slots=True)
class JointOptions:
    """``epochs``: times that each answer is seen; ``weight``: of the heads' loss beside the target's own."""

    epochs: int = 1
    weight: float = 0.2


class JointFit(Fit):
    """A fit of a head and of its target's ``adapter``; both end as the last step leaves them."""

    def __init__(
        self,
        head: DraftHead,
        adapter: Adapter,
        target: TargetWeights,
        store: FeatureStore,
        options: FitOptions,
        folder: Path,
        weight: float,
        workers: Workers = ALONE,
    ) -> None:
        super().__init__(head, target, store, options, folder, workers)
        self.adapter, self.weight = adapter, weight
        self.trained = nn.ModuleDict({"head": head, "target": adapter})
        groups: list[dict[str, Any]] = [
            {"params": list(head.parameters())},
            {"params": list(adapter.parameters()), "share": _SHARE},
        ]
        self._optimiser = optimiser(groups, options.lr)
        self._matrix = adapter.head.float()
        self._matrix_half = self._matrix.bfloat16() if options.half else self._matrix

    def _losses(self, indices: Sequence[int], whole: bool = False) -> Losses:
        batch, tokens = self._texts(indices, whole)
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self.options.half):
            hidden = self.adapter(tokens)
            kl, best, log_sum = self._distance(hidden[:, 1:][batch.mask], batch.last[batch.mask])
            seen = _seen(batch, hidden, best, log_sum)
            steps, loss = self.options.num_steps, self.options.loss
            drafts = Losses(*self._objective(seen, self._embedding, self._rows, steps, self._workers, loss))
        count = batch.mask.sum()
        self._workers.sum([count])
        kl = kl / count.clamp_min(1)
        return replace(drafts, loss=kl + self.weight * drafts.loss, kl=kl.detach())

    def _texts(self, indices: Sequence[int], whole: bool) -> tuple[Batch, Tensor]:
        """This process's part of a batch, and its tokens from their first one on [texts, rows + 1]."""
        batch, mine = self._collated(indices, whole)
        first = torch.stack([self._reader[index].tokens[:1].long() for index in mine])
        return batch, torch.cat((first.to(self._device), batch.tokens), dim=1)

    def _distance(self, new: Tensor, original: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The sum of KL(original || new) over hidden states of both [rows, hidden]; by the new law the likeliest token
        and the log of the sum [rows], the latter only where the heads' loss asks for it."""
        total, best, sums = new.new_zeros(()), [], []
        for ours, theirs in zip(torch.split(new, _ROWS), torch.split(original, _ROWS), strict=True):
            with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
                log_law = (theirs.float() @ self._matrix.T).log_softmax(-1)
                law = log_law.exp()
                entropy = -(law * log_law).sum()
                if self.options.loss != "ce":
                    sums.append((ours.float() @ self._matrix.T).logsumexp(-1))
            crossed, likeliest = cross_entropy(ours, self._matrix_half, law)
            total = total + crossed.sum() - entropy
            best.append(likeliest)
        return total, torch.cat(best), torch.cat(sums or [new.new_zeros(len(new))])


def _seen(batch: Batch, hidden: Tensor, best: Tensor, log_sum: Tensor) -> Batch:
    """``batch`` as the new target computes it. The objective moves no teacher, so that only features learn."""
    bests, sums = torch.zeros_like(batch.best), torch.zeros_like(batch.log_sum)
    bests[batch.mask], sums[batch.mask] = best, log_sum
    return replace(batch, features=hidden[:, :-1], last=hidden[:, 1:], best=bests, log_sum=sums)
