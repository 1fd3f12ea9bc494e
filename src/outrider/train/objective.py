"""What a head is trained for: at each unrolled step, the target's law over the draft vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from outrider.heads.base import DraftHead
from outrider.train.batches import Batch
from outrider.train.entropy import cross_entropy
from outrider.train.workers import Workers

ALONE = Workers()
LossName = Literal["ce", "lk", "hybrid"]
_FLOOR = 1e-4  # of a shared mass whose log is taken
DECAY = 0.8  # weight of step k is this to the power of k


@dataclass(frozen=True, slots=True)
class Losses:
    """``loss``: to be minimised; of several processes this one's part, and the parts' gradients add up. hits, trials
    [steps]: rows whose likeliest token was the target's, among those where that held in all steps before; ``kl``: of
    the loss that part which is the target's own, where it is trained too."""

    loss: Tensor
    hits: Tensor
    trials: Tensor
    kl: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Teacher:
    """The target's law at the rows of the mask: law [masked rows, draft vocab], renormalised, and ``kept``
    [masked rows], the share of the whole law that it stands for, where a loss asks for it; best [masked rows]: the
    draft id of the likeliest token, -1 where the head does not know it; texts, rows [masked rows]: where they are."""

    law: Tensor
    kept: Tensor | None
    best: Tensor
    texts: Tensor
    rows: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, head: DraftHead, batch: Batch, target_rows: Tensor, shared: bool = True) -> _Teacher:
        last, log_sum, best = batch.last[batch.mask], batch.log_sum[batch.mask], batch.best[batch.mask]
        with torch.autocast(last.device.type, enabled=False):  # near ties are what a head is judged by
            logits = last.float() @ target_rows.T
        ids = head.target_ids
        at = torch.searchsorted(ids, best).clamp_max(len(ids) - 1)
        kept = (logits.logsumexp(-1) - log_sum).exp() if shared else None
        texts, rows = batch.mask.nonzero(as_tuple=True)
        return cls(logits.softmax(-1), kept, torch.where(ids[at] == best, at, -1), texts, rows)

    def after(self, alive: Tensor, step: int) -> Tensor:
        """Whether the head was right about the row above each row in the step before [masked rows]; rows whose one
        above is not in the mask have nothing to be right about."""
        if step == 0:
            return alive
        out = torch.zeros_like(alive)
        follows = (self.texts[1:] == self.texts[:-1]) & (self.rows[1:] == self.rows[:-1] + 1)
        out[1:] = alive[:-1] & follows
        return out


def head_losses(
    head: DraftHead,
    batch: Batch,
    embedding: Tensor,
    target_rows: Tensor,
    steps: int,
    workers: Workers = ALONE,
    loss: LossName = "ce",
) -> Losses:
    """How far the head's laws are from the target's over the draft vocabulary; for heads that guess features, with
    their distance (smooth L1).

    embedding [vocab, hidden]; target_rows [draft vocab, hidden]: the target's own head. The mean is over all rows of
    all ``workers`` that have a target in a step. ``loss`` of a row: see ``_judge``. Source: EAGLE-3's training-time
    test (arXiv 2503.01840), Medusa's weights of the positions (arXiv 2401.10774).
    """
    teacher = _Teacher.of(head, batch, target_rows, loss != "ce")
    embedded = embedding[batch.tokens].float()
    total = embedded.new_zeros(())
    alive = torch.ones_like(teacher.best, dtype=torch.bool)
    hits, trials = [], []
    present = torch.stack([teacher.rows >= step for step in range(steps)])  # the text has such a row
    counts = present.sum(1)
    workers.sum([counts])
    counts.clamp_(min=1)
    start = max(0, int(teacher.rows.min()) - steps + 1) if len(teacher.rows) else 0
    for step, hidden in enumerate(head.unroll(embedded, batch.features.float(), steps, start)):
        at = teacher.texts, (teacher.rows - start - step).clamp_min(0)
        rows, right = _judge(head, hidden[at], step, teacher, loss)
        weight = present[step] * (DECAY**step / counts[step])
        total = total + (rows * weight).sum()
        if head.feature_weight:
            true = batch.last[teacher.texts, teacher.rows].float()
            distance = nn.functional.smooth_l1_loss(hidden[at].float(), true, reduction="none").mean(-1)
            total = total + head.feature_weight * (distance * weight).sum()
        with torch.no_grad():
            tried = present[step] & teacher.after(alive, step)
            alive = tried & right
            trials.append(tried.sum())
            hits.append(alive.sum())
    return Losses(total, torch.stack(hits), torch.stack(trials))


class Objective(nn.Module):
    """``head_losses`` of a head as a module, which can be sharded."""

    def __init__(self, head: DraftHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        """What ``head_losses`` takes behind the head, and what it gives."""
        losses = head_losses(self.head, *arguments)
        return losses.loss, losses.hits, losses.trials


def _judge(head: DraftHead, hidden: Tensor, step: int, teacher: _Teacher, loss: LossName) -> tuple[Tensor, Tensor]:
    """Loss of each row, and whether its likeliest token is the target's [masked rows], of the head's hidden states
    [masked rows, hidden] for the tokens that the teacher has laws of.

    `ce`: cross entropy to the target's renormalised law, nothing where its likeliest token has no row (EAGLE,
    SpecForge). `lk`: -log of the shared mass, the chance that a draft is accepted (LK losses, arXiv 2602.23881).
    `hybrid`: both, the second the more the larger the shared mass is already.
    """
    known = teacher.best >= 0
    if loss == "ce":
        entropy, best = cross_entropy(head.leave(hidden), head.vocabulary(step).weight, teacher.law)
        return entropy * known, best == teacher.best
    assert teacher.kept is not None
    logits = head.logits(hidden, step).float()
    right = logits.detach().argmax(-1) == teacher.best
    student = nn.functional.log_softmax(logits, dim=-1)
    shared = torch.minimum(teacher.law * teacher.kept[:, None], student.exp()).sum(-1)
    if loss == "lk":
        return -(shared + _FLOOR).log(), right
    weight = torch.exp(-3.0 * shared.detach())
    return -weight * (teacher.law * student).sum(-1) * known + (1.0 - weight) * (1.0 - shared), right
