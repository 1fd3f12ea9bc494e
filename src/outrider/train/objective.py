"""What a head is trained for: at each unrolled step, the target's law over the draft vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from outrider.heads.base import DraftHead
from outrider.train.batches import Batch
from outrider.train.workers import Workers

ALONE = Workers()
LossName = Literal["ce", "lk", "hybrid"]
DECAY = 0.8  # weight of step k is this to the power of k


@dataclass(frozen=True, slots=True)
class Losses:
    """``loss``: to be minimised; of several processes this one's part, and the parts' gradients add up. hits, trials
    [steps]: rows whose likeliest token was the target's, among those where that held in all steps before; overlap
    [steps]: sum over the latter of min(p, q)."""

    loss: Tensor
    hits: Tensor
    trials: Tensor
    overlap: Tensor


@dataclass(frozen=True, slots=True)
class _Teacher:
    """The target's law at the rows of the mask: law [masked rows, draft vocab], renormalised, and ``kept``
    [masked rows], the share of the whole law that it stands for; best [masked rows]: the draft id of the likeliest
    token, -1 where the head does not know it; place [texts, rows]: the masked row of each row, -1 elsewhere."""

    law: Tensor
    kept: Tensor
    best: Tensor
    place: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, head: DraftHead, batch: Batch, target_rows: Tensor) -> _Teacher:
        last, log_sum, best = batch.last[batch.mask], batch.log_sum[batch.mask], batch.best[batch.mask]
        with torch.autocast(last.device.type, enabled=False):  # near ties are what a head is judged by
            logits = last.float() @ target_rows.T
        ids = head.target_ids
        at = torch.searchsorted(ids, best).clamp_max(len(ids) - 1)
        place = torch.full(batch.mask.shape, -1)
        place[batch.mask] = torch.arange(len(best))
        kept = (logits.logsumexp(-1) - log_sum).exp()
        return cls(logits.softmax(-1), kept, torch.where(ids[at] == best, at, -1), place)


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
    all ``workers`` that have a target in a step. ``loss`` of a row: see ``_row_loss``. Source: EAGLE-3's training-time
    test (arXiv 2503.01840), Medusa's weights of the positions (arXiv 2401.10774).
    """
    teacher = _Teacher.of(head, batch, target_rows)
    embedded = embedding[batch.tokens].float()
    total = embedded.new_zeros(())
    alive = batch.mask
    hits, trials, overlap = [], [], []
    counts = torch.stack([(teacher.place[:, step:] >= 0).sum() for step in range(steps)])
    workers.sum([counts])
    counts.clamp_(min=1)
    for step, hidden in enumerate(head.unroll(embedded, batch.features.float(), steps)):
        place = nn.functional.pad(teacher.place[:, step:], (0, step), value=-1)
        rows = place >= 0
        at = place[rows]
        student = nn.functional.log_softmax(head.logits(hidden[rows], step).float(), dim=-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and loss != "ce"):
            shared = torch.minimum(teacher.law[at] * teacher.kept[at, None], student.exp()).sum(-1)
        total = total + DECAY**step * _row_loss(teacher, at, student, shared, loss).sum() / counts[step]
        if head.feature_weight:
            true = nn.functional.pad(batch.last[:, step:], (0, 0, 0, step))[rows].float()
            distance = nn.functional.smooth_l1_loss(hidden[rows].float(), true, reduction="none").mean(-1).sum()
            total = total + DECAY**step * head.feature_weight * distance / counts[step]
        tried = alive[rows]
        right = tried & (student.argmax(-1) == teacher.best[at])
        trials.append(tried.sum())
        hits.append(right.sum())
        overlap.append(shared.detach()[tried].sum())
        alive = torch.zeros_like(alive)
        alive[rows] = right
    return Losses(total, torch.stack(hits), torch.stack(trials), torch.stack(overlap))


def _row_loss(teacher: _Teacher, at: Tensor, student: Tensor, shared: Tensor, loss: LossName) -> Tensor:
    """[rows]. `ce`: cross entropy to the target's renormalised law, nothing where its likeliest token has no row
    (EAGLE, SpecForge). `lk`: -log of the shared mass, the chance that a draft is accepted (LK losses, arXiv
    2602.23881). `hybrid`: both, the second the more the larger the shared mass is already."""
    floor = 1e-4
    if loss == "lk":
        return -(shared + floor).log()
    entropy = -(teacher.law[at] * student).sum(-1) * (teacher.best[at] >= 0)
    if loss == "ce":
        return entropy
    weight = torch.exp(-3.0 * shared.detach())
    return weight * entropy + (1.0 - weight) * (1.0 - shared)
