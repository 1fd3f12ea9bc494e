"""A real inner engine over toy models, with its random choices on the tape of ``core.enumeration``.

A toy model's "keys and values" are the token ids themselves, kept by slot: a row's text is what its context and path
hold, so that a cache that was rolled back wrongly gives a wrong law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from core.enumeration import VOCAB, Draws, Model, Name, Text
from drafters.fakes import FakeSequence
from outrider.cache.pool import BlockPool
from outrider.config import SpeculativeConfig
from outrider.core.draft import Draft
from outrider.core.verifiers.base import Verifier
from outrider.drafters.base import Committed, Drafter, DraftSequence, DraftSource
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.hierarchical import Hierarchical
from outrider.drafters.trees import Paths
from outrider.engine import drafting, step
from outrider.engine.drafting import Method
from outrider.engine.inner import InnerEngine
from outrider.engine.laws import FreshNoise
from outrider.target.batch import Span, row_paths
from outrider.target.costs import CostCurve
from outrider.target.model import TargetOutput

BEGINNING = [0, 0]  # a prompt of one token and a first root: toy texts start behind them
FLAT = CostCurve((1, 64), (0.01, 0.0101))
_CONFIG = SpeculativeConfig(method="draft_model", model="toy", num_speculative_tokens=2)


class ToyStorage:
    """Token ids by slot."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.tokens, self._size = [-1] * num_slots, block_size

    def new_pool(self) -> BlockPool:
        return BlockPool(len(self.tokens) // self._size, self._size, zero_blocks=self.zero_blocks)

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        for at, token in zip(target, [self.tokens[slot] for slot in source], strict=True):
            self.tokens[at] = token

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.move(*(range(block * self._size, (block + 1) * self._size) for block in (source, target)))

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.tokens[block * self._size : (block + 1) * self._size] = [-1] * self._size


class ToyTarget:
    """Model ``who`` of a toy in the place of a ``Target``; its logits are log p, float64."""

    vocab_size, max_model_len, device = VOCAB, 64, torch.device("cpu")

    def __init__(self, model: Model, who: int) -> None:
        self._model, self._who = model, who

    def over(self, vocab_size: int) -> ToyTarget:
        return self

    def new_storage(self, num_slots: int, block_size: int) -> ToyStorage:
        return ToyStorage(num_slots, block_size)

    def forward(self, spans: Sequence[Span], storage: ToyStorage, layers: Sequence[int] = ()) -> TargetOutput:
        rows = [row for span in spans for row in self._rows(span, storage)]
        return TargetOutput(torch.stack(rows) if rows else torch.empty(0, VOCAB), None)

    def _rows(self, span: Span, storage: ToyStorage) -> list[Tensor]:
        slots = span.slots or span.context[span.start : span.start + len(span.tokens)].tolist()
        for slot, token in zip(slots, span.tokens, strict=True):
            storage.tokens[slot] = token
        chain = span.paths is None and span.parents is None
        paths = [slots[: row + 1] for row in range(len(slots))] if chain else row_paths(span)
        before = [storage.tokens[slot] for slot in span.context[: span.start].tolist()]
        wanted = range(len(slots)) if span.logits is None else span.logits
        texts = [before + [storage.tokens[slot] for slot in paths[row]] for row in wanted]
        return [torch.log(self._model.law(self._who, tuple(text[len(BEGINNING) :]))) for text in texts]


class ToyPipeline:
    """Scores are the raw log p, in float64."""

    greedy, plain, needs_history = False, True, False

    def process(self, raw: Tensor, output_ids: Sequence[int] = (), path: Sequence[int] = ()) -> Tensor:
        return raw

    def probs(self, raw: Tensor, output_ids: Sequence[int], path: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.softmax(raw, 0)


@dataclass
class TapeNoise:
    """The inner engine's noise: one number a key and position, known to its own drafter, as in the engine."""

    draws: Draws
    shared: bool = True
    merge_paths: bool = False

    def draw(self, scores: Tensor, key: int, position: int) -> int:
        return self.draws.draw(torch.softmax(scores, 0).tolist(), Name(f"inner {key}", position, 0, position))

    def candidates(self, seq: DraftSequence, scores: Tensor, position: int, count: int) -> list[int]:
        return [self.draw(scores, cast(Any, seq).noise_key, position)]  # fewer than asked for: those behind have no use

    def perturbed(self, seq: DraftSequence, scores: Tensor, position: int, tokens: Sequence[int]) -> Tensor:
        return scores[list(tokens)]

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        name = Name(f"inner draft {cast(Any, seq).noise_key}", len(seq.token_ids), 10 * position + index, position)
        return self.draws.draw(weights.tolist(), name)

    def inner_key(self, seq: DraftSequence) -> int:
        return int(cast(Any, seq).noise_key)


@dataclass
class TapeRandomness:
    """Draws of an inner classical rule."""

    draws: Draws
    key: int
    root: int

    def categorical(self, weights: Tensor, purpose: str, node: int) -> int:
        return self.draws.draw(weights.tolist(), Name(f"inner {purpose} {self.key}", self.root, node, self.root))

    def bernoulli(self, probability: float, purpose: str, node: int) -> bool:
        chance = min(1.0, probability)
        return self.categorical(torch.tensor([chance, 1.0 - chance], dtype=torch.float64), purpose, node) == 0


@dataclass
class Rig:
    """The real drafters of one run, over as many models as there are levels below the target."""

    draws: Draws
    model: Model
    levels: int
    rule: Verifier | None
    noise: Any
    seq: FakeSequence = field(init=False)
    drafter: Drafter = field(init=False)

    def __post_init__(self) -> None:
        self.drafter = self._level(1)
        self.seq = FakeSequence(list(BEGINNING), num_prompt_tokens=1, pipeline=ToyPipeline())
        cast(Any, self.seq).noise_key = 77
        self.drafter.begin(self.seq)

    def _level(self, who: int) -> Drafter:
        target = cast(Any, ToyTarget(self.model, who))
        if who == self.levels:
            return DraftModel(target, Paths(), VOCAB, 64)
        engine = InnerEngine(DraftSource(target, 64), _CONFIG, self._level(who + 1), VOCAB, strict=True)
        tape: Any = TapeNoise(self.draws)
        engine.engine._draw = tape.draw
        engine.engine.drafting._shared = tape
        if self.rule is not None:
            engine.engine.drafting.methods = {"draft_model": Method(_CONFIG, engine.method.drafter, self.rule)}
        return Hierarchical(engine)

    def propose(self, text: Text, count: int) -> Draft:
        """The draft behind ``text``; asked twice, since the second answer must be the first."""
        known = len(self.seq.token_ids)
        self.seq.token_ids = [*BEGINNING, *text]
        if len(self.seq.token_ids) > known:
            self.drafter.observe(self.seq, Committed(self.seq.token_ids[known:]))
        (first,) = self.drafter.propose([self.seq], [count], self.noise)
        (again,) = self.drafter.propose([self.seq], [count], self.noise)
        assert list(first.tokens) == list(again.tokens)
        return again


def hierarchical(count: int, levels: int = 2, rule: Verifier | None = None, noise: Any = None) -> Any:
    """A toy drafter that asks the real one, which lives as long as a run. ``rule``: of the inner engines."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        rig: Rig | None = getattr(draws, "rig", None)
        if rig is None:
            rig = cast(Any, draws).rig = Rig(draws, model, levels, rule, noise or FreshNoise())
        tape: Any = TapeNoise(draws, shared=False)
        cast(Any, step).StreamRandomness = lambda key, root: TapeRandomness(draws, key, root)
        cast(Any, drafting).FreshNoise = lambda merge_paths: tape
        return rig.propose(context, count)

    return drafter
