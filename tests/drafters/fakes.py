"""A sequence and a noise for drafters under test, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from outrider.core.logits import LogitsPipeline
from outrider.drafters.base import DraftSequence


class Counting:
    """A constraint under which every third token forces the two that count on from it."""

    def allowed(self, tokens: Sequence[int]) -> None:
        return None

    def accepts(self, tokens: Sequence[int]) -> bool:
        return True

    def forced(self, tokens: Sequence[int]) -> list[int]:
        last = tokens[-1] if tokens else 1
        return [last + 1, last + 2] if last < 40 and last % 3 == 0 else []

    def complete(self, tokens: Sequence[int]) -> bool:
        return False


@dataclass
class Unprocessed:
    """As much of a pipeline as drafters without a law look at."""

    constraint: Counting | None = None


@dataclass
class FakeSequence:
    """A DraftSequence that a test grows and cuts by hand."""

    token_ids: list[int]
    seq_id: int = 0
    num_prompt_tokens: int = -1
    prediction: Sequence[int] = field(default_factory=list)
    cache_salt: str = ""
    task: str = ""
    pipeline: Any = field(default_factory=Unprocessed)

    def __post_init__(self) -> None:
        if self.num_prompt_tokens < 0:
            self.num_prompt_tokens = len(self.token_ids)


class NoNoise:
    """A DraftNoise for drafters that must not ask for any."""

    shared = True
    merge_paths = False

    def candidates(self, seq: DraftSequence, scores: Tensor, position: int, count: int) -> list[int]:
        raise AssertionError("a lookup drafter asked for noise")

    def perturbed(self, seq: DraftSequence, scores: Tensor, position: int, tokens: Sequence[int]) -> Tensor:
        raise AssertionError("a lookup drafter asked for noise")

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        raise AssertionError("a lookup drafter asked for noise")


def keyed(
    tokens: Sequence[int], vocab_size: int, seq_id: int = 0, temperature: float = 1.0, **settings: Any
) -> FakeSequence:
    """A sequence with a pipeline and a noise key, as a drafter with a model wants it."""
    pipeline = LogitsPipeline(vocab_size=vocab_size, temperature=temperature, **settings)
    seq = FakeSequence(list(tokens), seq_id=seq_id, num_prompt_tokens=1, pipeline=pipeline)
    seq.noise_key = 1234  # type: ignore[attr-defined]
    return seq
