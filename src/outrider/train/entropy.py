"""Cross entropy of a linear layer over a vocabulary, a few rows at a time, so that its logits never leave the cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_ROWS = 128  # of logits that are held at once


def cross_entropy(x: Tensor, weight: Tensor, law: Tensor) -> tuple[Tensor, Tensor]:
    """-sum law * log softmax(x @ weight.T) [rows] float32, and the likeliest token of each row [rows].

    x [rows, hidden]; weight [vocab, hidden]; law [rows, vocab] float32, of sum one. Under autocast the products are
    of its precision, the sums of float32.
    """
    entropy, best = _CrossEntropy.apply(x, weight, law)  # type: ignore[no-untyped-call]
    return entropy, best


class _CrossEntropy(torch.autograd.Function):
    """The gradient of a row's logits, its law less the target's, is all that is kept of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, law: Tensor) -> tuple[Tensor, Tensor]:
        """See ``cross_entropy``."""
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        x, weight = x.to(dtype), weight.to(dtype)
        error = x.new_empty(law.shape)
        entropy = torch.empty(len(x), device=x.device)
        best = torch.empty(len(x), dtype=torch.long, device=x.device)
        for first in range(0, len(x), _ROWS):
            rows = slice(first, first + _ROWS)
            logits = (x[rows] @ weight.T).float()
            top, best[rows] = logits.max(-1)
            met = torch.linalg.vecdot(law[rows], logits)
            q = logits.sub_(top[:, None]).exp_()
            total = q.sum(-1)
            entropy[rows] = top + total.log() - met
            error[rows] = q.div_(total[:, None]).sub_(law[rows])
        ctx.save_for_backward(error, x, weight)
        ctx.mark_non_differentiable(best)
        return entropy, best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Of x and weight, each where it is asked for."""
        error, x, weight = ctx.saved_tensors
        of_x = gradient[:, None] * (error @ weight) if ctx.needs_input_grad[0] else None
        of_weight = (error.T @ (gradient[:, None] * x).to(x.dtype)).float() if ctx.needs_input_grad[1] else None
        return of_x, of_weight, None
