"""Repetition, presence and frequency penalties over prompt, output and path, at a cost of the distinct ids only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.errors import RequestError


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Counts of one output: ``ids`` and ``counts`` [distinct] in order of first occurrence."""

    output: list[int]
    counter: Counter[int]
    ids: Tensor
    counts: Tensor


class Penalties:
    """The three penalties of one request, as in vLLM: repetition, then frequency, then presence.

    Repetition divides positive and multiplies negative scores of ids in prompt, output or path; frequency subtracts
    its value per occurrence, and presence once, for ids in output or path. Counts of the last output seen are kept;
    an output that grew is counted from where it grew, any other one anew.
    """

    def __init__(self, prompt_ids: Collection[int], repetition: float, presence: float, frequency: float) -> None:
        if not 0.0 < repetition < math.inf:
            raise RequestError(f"repetition_penalty={repetition}: it must be above 0 and finite")
        for name, value in (("presence", presence), ("frequency", frequency)):
            if not math.isfinite(value):
                raise RequestError(f"{name}_penalty={value}: it must be finite")
        self._repetition = repetition
        self._presence = presence
        self._frequency = frequency
        distinct = sorted(set(prompt_ids)) if repetition != 1.0 else []
        self._prompt = torch.tensor(distinct, dtype=torch.int64)
        self._last = _snapshot([], Counter(), self._prompt.device)

    @property
    def active(self) -> bool:
        """Whether any penalty is set."""
        return self._repetition != 1.0 or self._presence != 0.0 or self._frequency != 0.0

    def apply_(self, scores: Tensor, output_ids: Sequence[int], path: Sequence[int]) -> None:
        """Penalise ``scores`` [vocab] float32 in place, for the node that ``output_ids`` + ``path`` lead to."""
        if self._prompt.device != scores.device:
            self._prompt = self._prompt.to(scores.device)
        seen = self._count(output_ids, scores.device)
        new = Counter(path)
        path_ids = torch.tensor(list(new), dtype=torch.int64, device=scores.device)
        totals = [seen.counter[token] + count for token, count in new.items()]
        path_counts = torch.tensor(totals, dtype=torch.float32, device=scores.device)
        # gathered before the first write: each group starts from the unpenalised scores and the last writer is right
        prompt = self._repeat(scores[self._prompt])
        output = self._penalise(scores[seen.ids], seen.counts)
        drafted = self._penalise(scores[path_ids], path_counts)
        scores[self._prompt] = prompt
        scores[seen.ids] = output
        scores[path_ids] = drafted

    def _repeat(self, values: Tensor) -> Tensor:
        return torch.where(values > 0, values / self._repetition, values * self._repetition)

    def _penalise(self, values: Tensor, counts: Tensor) -> Tensor:
        return self._repeat(values) - counts * self._frequency - self._presence

    def _count(self, output_ids: Sequence[int], device: torch.device) -> _Snapshot:
        last = self._last
        size = len(last.output)
        if list(output_ids[:size]) != last.output:
            last = self._last = _snapshot(list(output_ids), Counter(output_ids), device)
        elif len(output_ids) > size or last.ids.device != device:
            counter = last.counter.copy()
            counter.update(output_ids[size:])
            last = self._last = _snapshot(list(output_ids), counter, device)
        return last


def _snapshot(output: list[int], counter: Counter[int], device: torch.device) -> _Snapshot:
    ids = torch.tensor(list(counter), dtype=torch.int64, device=device)
    counts = torch.tensor(list(counter.values()), dtype=torch.float32, device=device)
    return _Snapshot(output, counter, ids, counts)
