"""How far a target that was trained has moved from the one that it was: on texts that neither learnt from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.target.batch import Span
from outrider.target.model import Target
from outrider.train.answers import Sample

_ROWS = 256  # of one forward: their logits are vocabulary wide
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Quality:
    """Over ``tokens`` of the original's answers: ``kl``: KL(original || new), nats a token; ``agreement``: share of
    tokens at which both have the same likeliest one; perplexity of the answers by each. The answers are the original's
    own, so that its perplexity is lower."""

    kl: float
    agreement: float
    perplexity_original: float
    perplexity_new: float
    tokens: int
    texts: int

    def text(self) -> str:
        """In one line."""
        return (
            f"KL(original || new) {self.kl:.4f} nats a token, the same likeliest token at {self.agreement:.2%}, "
            f"perplexity {self.perplexity_original:.3f} before and {self.perplexity_new:.3f} after, "
            f"on {self.tokens} tokens of {self.texts} held-out answers of the original"
        )


def compare(
    original: Target, new: Target, samples: Sequence[Sample], longest: int, progress: Callable[[int, int], None]
) -> Quality:
    """Both over ``samples``, each cut to ``longest`` tokens, as the engine computes them."""
    sums, tokens, texts = torch.zeros(4, dtype=torch.float64), 0, 0
    for number, sample in enumerate(samples, start=1):
        ids = list(sample.token_ids[:longest])
        if len(ids) > sample.num_prompt_tokens:
            rows = slice(max(0, sample.num_prompt_tokens - 1), len(ids) - 1)  # each says the token behind it
            told = torch.tensor(ids[rows.start + 1 :])
            sums += _sums(_log_law(original, ids)[rows], _log_law(new, ids)[rows], told)
            tokens, texts = tokens + len(told), texts + 1
        progress(number, len(samples))
    means = sums / max(1, tokens)
    before, after = (-means[2:]).exp().tolist()
    return Quality(float(means[0]), float(means[1]), before, after, tokens, texts)


def _sums(ours: Tensor, theirs: Tensor, told: Tensor) -> Tensor:
    """KL, agreement, log likelihood by ``ours`` and by ``theirs``, over rows [rows, vocab] that say ``told`` [rows]."""
    distance = (ours.exp() * (ours - theirs)).sum()
    same = (ours.argmax(-1) == theirs.argmax(-1)).sum()
    likelihoods = [law.gather(1, told[:, None]).sum() for law in (ours, theirs)]
    return torch.stack([distance, same.float(), *likelihoods]).double().cpu()


def _log_law(target: Target, ids: Sequence[int]) -> Tensor:
    """The log of the law behind every token [tokens, vocab]."""
    slots = -(-len(ids) // _BLOCK) * _BLOCK
    storage, context = target.new_storage(slots, _BLOCK), torch.arange(slots, dtype=torch.int32)
    starts = range(0, len(ids), _ROWS)
    parts = [target.forward([Span(ids[start : start + _ROWS], context, start)], storage).logits for start in starts]
    return torch.cat(parts).cpu().log_softmax(-1)
