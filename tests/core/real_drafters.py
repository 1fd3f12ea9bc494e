"""The project's own model drafters over toy models, for the enumeration: every draw they make goes through the tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from core.enumeration import VOCAB, Drafter, Draws, Model, Name, Text
from drafters.fakes import FakeSequence
from outrider.cache.pool import BlockPool
from outrider.core.draft import Draft
from outrider.core.logits import LogitsPipeline
from outrider.drafters.base import Drafter as RealDrafter
from outrider.drafters.base import DraftSequence
from outrider.drafters.draft_model import NEVER, DraftModel, Stops
from outrider.drafters.specinfer import SpecInfer
from outrider.drafters.trees import Shape
from outrider.target.batch import Span

START = 0  # stands before the context, so that a sequence has a root from the first step on


@dataclass
class _Storage:
    """Which token's keys and values a slot holds."""

    num_slots: int
    block_size: int
    tokens: dict[int, int] = field(default_factory=dict)

    def new_pool(self) -> BlockPool:
        """All blocks are its own."""
        return BlockPool(self.num_slots // self.block_size, self.block_size)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Nothing to do."""

    def copy_blocks(self, pairs: object) -> None:
        """Nothing is shared in one step."""


@dataclass
class ToyTarget:
    """Toy model ``who`` as a network: a row's logits are a function of the tokens in the slots that it attends to."""

    model: Model
    who: int
    max_model_len: int = 16
    vocab_size: int = VOCAB

    def new_storage(self, num_slots: int, block_size: int) -> _Storage:
        """An empty cache."""
        return _Storage(num_slots, block_size)

    def over(self, vocab_size: int) -> ToyTarget:
        assert vocab_size == self.vocab_size
        return self

    def forward(self, spans: Sequence[Span], storage: _Storage) -> Any:
        """Logits of the wanted rows."""
        out: list[Tensor] = []
        for span in spans:
            context = span.context.tolist()
            before = [storage.tokens[slot] for slot in context[: span.start]]
            for row, token in enumerate(span.tokens):
                slot = context[span.start + row] if span.slots is None else span.slots[row]
                storage.tokens[slot] = token
                path = [storage.tokens[s] for s in span.paths[row]] if span.paths is not None else span.tokens[:row]
                if span.logits is None or row in span.logits:
                    prefix = (*before, *path, token)
                    out.append(self.model.law(self.who, tuple(prefix[1:])).log())
        return SimpleNamespace(logits=torch.stack(out) if out else torch.zeros(0, VOCAB))


class TapeNoise:
    """Fresh noise: every (position, index) is a draw of its own."""

    shared = False

    def __init__(self, draws: Draws, merge_paths: bool) -> None:
        self.merge_paths = merge_paths
        self._draws = draws

    def candidates(self, seq: DraftSequence, scores: Tensor, position: int, count: int) -> list[int]:
        """Fresh noise has none."""
        raise NotImplementedError

    def perturbed(self, seq: DraftSequence, scores: Tensor, position: int, tokens: Sequence[int]) -> Tensor:
        """Fresh noise has none."""
        raise NotImplementedError

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        """One draw."""
        return self._draws.draw(weights.tolist(), Name("draft", self._draws.root, 100 * position + index, position))


def real(make: Callable[[Model], RealDrafter], budget: int, merge_paths: bool = False) -> Drafter:
    """The draft that the drafter of ``make`` proposes for ``budget``."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        seq = FakeSequence([START, *context], num_prompt_tokens=1, pipeline=LogitsPipeline(vocab_size=VOCAB))
        (draft,) = make(model).propose([seq], [budget], TapeNoise(draws, merge_paths))
        draft.check(VOCAB, budget)
        return draft

    return drafter


def draft_model(shape: Shape, stops: Stops = NEVER, who: int = 1) -> Callable[[Model], DraftModel]:
    """A draft model of one shape."""
    return lambda model: DraftModel(ToyTarget(model, who), shape, VOCAB, 16, stops)  # type: ignore[arg-type]


def specinfer(shape: Shape, stops: Stops = NEVER, count: int = 2) -> Callable[[Model], SpecInfer]:
    """Draft models 1, 2, ... side by side."""
    return lambda model: SpecInfer([draft_model(shape, stops, who)(model) for who in range(1, count + 1)])
