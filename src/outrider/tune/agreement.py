"""How far a target with skipped sublayers agrees with itself, and what that is worth: without running the engine.

A text is a prompt and the target's own greedy answer. Its keys and values are computed once; then chains of draft rows
start at every ``DEPTH``-th token of the answer and are fed the answer's tokens, exactly as the engine would draft them
as long as they are accepted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.errors import RequestError
from outrider.target.batch import Span
from outrider.target.costs import CONTEXT, CostCurve, curve_of
from outrider.target.model import Target
from outrider.target.skip import ATTENTION, MLP, skip_mask

DEPTH = 8
OVERHEAD = 0.0004  # seconds of a step, and of a drafted token, that no forward accounts for
_BLOCK = 16
_ROWS = 256  # draft rows per forward
_ROUNDS = 40


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its answer as one list of tokens."""

    token_ids: Sequence[int]
    num_prompt_tokens: int


class Agreement:
    """Survival of drafts over ``texts``. Raises RequestError when no answer is long enough for a chain."""

    def __init__(self, target: Target, texts: Sequence[Text]) -> None:
        self._target = target
        self._chains: list[tuple[Span, list[int]]] = []
        sizes = [-(-len(text.token_ids) // _BLOCK) * _BLOCK for text in texts]
        self._storage = target.new_storage(sum(sizes) + -(-_ROWS // _BLOCK) * _BLOCK, _BLOCK)
        scratch, first = sum(sizes), 0
        for text, size in zip(texts, sizes, strict=True):
            context = torch.arange(first, first + size, dtype=torch.int32)
            tokens = list(text.token_ids)
            for start in range(0, len(tokens), _ROWS):
                target.forward([Span(tokens[start : start + _ROWS], context, start, logits=[])], self._storage)
            for root in range(text.num_prompt_tokens, len(tokens) - DEPTH, DEPTH):
                at = scratch + len(self._chains) % (_ROWS // DEPTH) * DEPTH
                parents, slots = list(range(-1, DEPTH - 1)), list(range(at, at + DEPTH))
                rows = Span(tokens[root : root + DEPTH], context, root, parents=parents, slots=slots)
                self._chains.append((rows, tokens[root + 1 : root + DEPTH + 1]))
            first += size
        if not self._chains:
            raise RequestError(f"no answer has more than {DEPTH} tokens: raise --max-tokens, or give other prompts")

    @property
    def num_chains(self) -> int:
        """Chains that a survival rests on."""
        return len(self._chains)

    def survival(self, mask: bytes) -> list[float]:
        """P(the first i + 1 drafted tokens are accepted) at temperature 0, for i below ``DEPTH``."""
        alive = torch.zeros(DEPTH)
        step = _ROWS // DEPTH
        for start in range(0, len(self._chains), step):
            part = self._chains[start : start + step]
            logits = self._target.forward([span for span, _ in part], self._storage, skip=mask).logits
            right = logits.argmax(-1).view(-1, DEPTH) == torch.tensor([wanted for _, wanted in part])
            alive += right.long().cumprod(1).sum(0)
        return [float(value) / len(self._chains) for value in alive]


class Costs:
    """Seconds of forwards with skipped sublayers: layers have one shape, so four measured masks give all others."""

    def __init__(self, target: Target) -> None:
        count, every = target.num_layers, range(target.num_layers)
        self.verify: CostCurve = curve_of(target)
        masks = [skip_mask(count, *sets) for sets in (((), ()), (every, ()), ((), every), (every, every))]
        full, mlp, attention, rest = _one_row(target, masks)
        all_attention = max(0.0, full - mlp + attention - rest) / 2  # least squares: attention + MLP + rest
        all_mlp = max(0.0, full - attention + mlp - rest) / 2
        fitted = (full + mlp + attention + rest) / 4 + (all_attention + all_mlp) / 2
        scale = self.verify(1) / fitted  # nothing skipped costs what a step of one row does
        self._rest = max(0.0, fitted - all_attention - all_mlp) * scale
        self._attention, self._mlp = all_attention * scale / count, all_mlp * scale / count

    def draft(self, mask: bytes) -> float:
        """Seconds of one draft row."""
        attention = sum(not bits & ATTENTION for bits in mask)
        mlp = sum(not bits & MLP for bits in mask)
        return self._rest + attention * self._attention + mlp * self._mlp

    def speedup(self, mask: bytes, survival: Sequence[float]) -> tuple[float, int]:
        """Expected tokens per second over those of plain decoding, and the number of draft tokens that gives it."""
        plain, row = self.verify(1) + OVERHEAD, self.draft(mask) + OVERHEAD
        best, best_count, expected = 0.0, 1, 1.0
        for count, chance in enumerate(survival, start=1):
            expected += chance
            value = expected * plain / (count * row + self.verify(1 + count) + OVERHEAD)
            if value > best:
                best, best_count = value, count
        return best, best_count


def _one_row(target: Target, masks: Sequence[bytes]) -> list[float]:
    """Seconds of a row with each of ``masks``: measured in turns, so that what else the machine does hits all alike."""
    context = torch.arange(CONTEXT + _BLOCK, dtype=torch.int32)
    start = min(CONTEXT, target.max_model_len // 2)
    storage = target.new_storage(len(context), _BLOCK)
    best = [float("inf")] * len(masks)
    for _ in range(_ROUNDS):
        for at, mask in enumerate(masks):
            begin = time.perf_counter()
            target.forward([Span([1], context, start)], storage, skip=mask)
            best[at] = min(best[at], time.perf_counter() - begin)
    return best
