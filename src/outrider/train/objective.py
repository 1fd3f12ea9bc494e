"""What a head is trained for: at each unrolled step, the target's law over the draft vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider.heads.eagle3 import Eagle3
from outrider.train.batches import Batch

DECAY = 0.8  # weight of step k is this to the power of k


@dataclass(frozen=True, slots=True)
class Losses:
    """``loss``: to be minimised. hits, trials [steps]: rows whose likeliest token was the target's, among those where
    that held in all steps before; ``overlap`` [steps]: sum over the latter of min(p, q)."""

    loss: Tensor
    hits: Tensor
    trials: Tensor
    overlap: Tensor


def eagle3_losses(head: Eagle3, batch: Batch, embedding: Tensor, target_rows: Tensor, steps: int) -> Losses:
    """Cross entropy to the target's law over the draft vocabulary, over rows whose likeliest token is in it.

    embedding [vocab, hidden]; target_rows [draft vocab, hidden]: the target's own head. Source: EAGLE-3's training-time
    test (arXiv 2503.01840).
    """
    embedded = embedding[batch.tokens].float()
    loss = embedded.new_zeros(())
    alive = batch.mask
    hits, trials, overlap = [], [], []
    teacher_logits = (batch.last.to(target_rows.dtype) @ target_rows.T).float()
    known = head.t2d[batch.best]
    draft_best = torch.searchsorted(head.target_ids, batch.best).clamp_max(len(head.target_ids) - 1)
    for step, hidden in enumerate(head.unroll(embedded, batch.features.float(), steps)):
        logits = head.logits(hidden).float()
        rows = logits.shape[1]
        shifted = _left(batch.mask, step)
        rows_known = shifted & _left(known, step)
        student = nn.functional.log_softmax(logits[rows_known], dim=-1)
        wanted = _left(teacher_logits, step)[rows_known]
        teacher = wanted.softmax(-1)
        entropy = -(teacher * student).sum(-1)
        loss = loss + DECAY**step * entropy.sum() / shifted.sum().clamp_min(1)
        with torch.no_grad():
            alive = alive & shifted
            right = alive & _left(known, step) & (logits.argmax(-1) == _left(draft_best, step))
            law = (wanted - _left(batch.log_sum, step)[rows_known][:, None]).exp()
            share = torch.zeros(alive.shape)
            share[rows_known] = torch.minimum(law, student.exp()).sum(-1)
            trials.append(alive.sum())
            hits.append(right.sum())
            overlap.append(share[alive].sum())
            alive = right
        assert rows == batch.mask.shape[1]
    return Losses(loss, torch.stack(hits), torch.stack(trials), torch.stack(overlap))


def _left(part: Tensor, step: int) -> Tensor:
    """part [texts, rows, ...] moved ``step`` rows to the front; zeros come in."""
    if step == 0:
        return part
    pad = [0, 0] * (part.dim() - 2) + [0, step]
    return nn.functional.pad(part[:, step:], pad)
