"""The random side of a step: the target's laws and draws for one draft, and the noise that drafters are handed."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import cast

import torch
from torch import Tensor

from outrider import native
from outrider.core import noise
from outrider.core.draft import Draft
from outrider.drafters.base import DraftSequence
from outrider.engine.sequence import Sequence
from outrider.errors import NumericsError

_NOT_A_LAW = "processed logits hold NaN or +infinity, or every token is masked"


def row_argmax(library: native.Library | None) -> Callable[[Tensor], list[int]]:
    """``logits`` [rows, vocab] -> the id of the largest value of each row, the first of equals."""
    if library is None:
        return lambda logits: logits.argmax(dim=-1).tolist()
    kernel = library.argmax

    def best(logits: Tensor) -> list[int]:
        if logits.device.type != "cpu" or logits.dtype != torch.float32:
            return logits.argmax(dim=-1).tolist()
        logits = logits.contiguous()
        ids = (ctypes.c_int64 * logits.shape[0])()
        kernel(logits.data_ptr(), *logits.shape, ids, native.threads())
        return list(ids)

    return best


def row_topk(library: native.Library | None) -> Callable[[Tensor, int], Tensor]:
    """``(logits [rows, vocab], k) -> ids [rows, k]``: the k largest of each row, largest first."""
    if library is None:
        return lambda logits, k: logits.topk(k, dim=-1).indices
    kernel = library.topk

    def best(logits: Tensor, k: int) -> Tensor:
        if logits.device.type != "cpu" or logits.dtype != torch.float32 or not 0 < k <= logits.shape[1]:
            return logits.topk(k, dim=-1).indices
        logits = logits.contiguous()
        ids = torch.empty((logits.shape[0], k), dtype=torch.int64)
        kernel(logits.data_ptr(), *logits.shape, k, ids.data_ptr(), native.threads())
        return ids

    return best


def draw_argmax(library: native.Library | None) -> Callable[[Tensor, int, int], int]:
    """``(scores, key, position) -> id``: argmax of scores + shared noise, by the kernel or by its torch twin."""
    if library is None:
        return noise.gumbel_argmax
    kernel = library.gumbel_argmax

    def draw(scores: Tensor, key: int, position: int) -> int:
        if scores.device.type != "cpu" or scores.dtype != torch.float32:
            return noise.gumbel_argmax(scores, key, position)
        scores = scores.contiguous()
        token = int(kernel(scores.data_ptr(), scores.shape[0], *noise.noise_words(key, position)))
        if token < 0:
            raise NumericsError(_NOT_A_LAW)
        return token

    return draw


def best_ids(library: native.Library | None) -> Callable[[Tensor, int, int, int], list[int]]:
    """``(scores, key, position, count) -> ids``: the best of scores + shared noise, by the kernel or its torch twin."""
    if library is None:
        return noise.gumbel_topk
    kernel = library.gumbel_topk

    def best(scores: Tensor, key: int, position: int, count: int) -> list[int]:
        if scores.device.type != "cpu" or scores.dtype != torch.float32 or count < 1:
            return noise.gumbel_topk(scores, key, position, count)
        scores = scores.contiguous()
        ids = (ctypes.c_int64 * count)()
        found = kernel(scores.data_ptr(), scores.shape[0], *noise.noise_words(key, position), count, ids)
        if found < 1:
            raise NumericsError(_NOT_A_LAW)
        return ids[:found]

    return best


class NodeLaws:
    """The target's law at the root and at every node of one draft, computed when a verifier asks for it.

    ``logits`` [1 + nodes, vocab]: raw rows, the root's first. ``best``: their argmaxes where those decide.
    """

    def __init__(
        self,
        seq: Sequence,
        draft: Draft,
        logits: Tensor,
        best: Seq[int] | None,
        draw: Callable[[Tensor, int, int], int],
    ) -> None:
        self._seq, self._draft, self._logits, self._best, self._draw = seq, draft, logits, best, draw
        self._history = seq.pipeline.needs_history
        self._scores: dict[int, Tensor] = {}

    def _path(self, node: int) -> list[int]:
        return [self._draft.tokens[n] for n in self._draft.path(node)] if self._history else []

    def probs(self, node: int) -> Tensor:
        """p after ``node`` [vocab], float64."""
        output = self._seq.output_ids if self._history else ()
        return self._seq.pipeline.probs(self._logits[node + 1], output, self._path(node), torch.float64)

    def draw(self, node: int) -> int:
        """The target's own sample after ``node``."""
        if self._best is not None:
            return self._best[node + 1]
        scores = self.scores(node)
        if self._seq.pipeline.greedy:
            return int(scores.argmax())
        depth = len(self._draft.path(node))
        return self._draw(scores, self._seq.noise_key, len(self._seq.token_ids) + depth)

    def scores(self, node: int) -> Tensor:
        """Processed scores after ``node`` [vocab], as ``LogitsPipeline.process`` gives them."""
        if node not in self._scores:
            output = self._seq.output_ids if self._history else ()
            self._scores[node] = self._seq.pipeline.process(self._logits[node + 1], output, self._path(node))
        return self._scores[node]


class SharedNoise:
    """What a drafter gets under a rule with shared noise: the noise that the target is about to use."""

    shared = True
    merge_paths = False

    def __init__(self, library: native.Library | None = None) -> None:
        self._best, self._argmax = best_ids(library), row_argmax(library)

    def candidates(self, seq: DraftSequence, scores: Tensor, position: int, count: int) -> list[int]:
        """The ``count`` tokens that the target would draw first were its law the drafter's; fewer when masked."""
        if not seq.pipeline.greedy:
            return self._best(scores, cast(Sequence, seq).noise_key, position, count)
        if count == 1:
            return self._argmax(scores[None])
        values, ids = torch.topk(scores, min(count, scores.shape[0]))
        return [id_ for id_, value in zip(ids.tolist(), values.tolist(), strict=True) if value > -math.inf]

    def perturbed(self, seq: DraftSequence, scores: Tensor, position: int, tokens: Seq[int]) -> Tensor:
        """What ``candidates`` ranks by, of ``tokens``."""
        ids = torch.tensor(tokens, dtype=torch.int64, device=scores.device)
        values = scores[ids].to(torch.float64)
        if seq.pipeline.greedy:
            return values
        return values + noise.gumbel(cast(Sequence, seq).noise_key, position, scores.shape[0], ids)

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        """Shared noise makes candidates, not samples."""
        raise NotImplementedError("under a rule with shared noise drafters use candidates()")

    def inner_key(self, seq: DraftSequence) -> int:
        """The target's own key: an inner engine writes what the target would, were its law the inner one."""
        return cast(Sequence, seq).noise_key


class FreshNoise:
    """What a drafter gets under the classical rules: draws that are independent of the target's."""

    shared = False

    def __init__(self, merge_paths: bool = False) -> None:
        self.merge_paths = merge_paths

    def candidates(self, seq: DraftSequence, scores: Tensor, position: int, count: int) -> list[int]:
        """Fresh noise makes samples, not candidates."""
        raise NotImplementedError("under a classical rule drafters use sample()")

    def perturbed(self, seq: DraftSequence, scores: Tensor, position: int, tokens: Seq[int]) -> Tensor:
        """Fresh noise makes samples, not candidates."""
        raise NotImplementedError("under a classical rule drafters use sample()")

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        """One draw from ``weights``, from a stream of this step: a later step at the same position draws anew."""
        stream = noise.Stream(cast(Sequence, seq).noise_key, "draft", len(seq.token_ids) - 1)
        return noise.categorical(weights, stream.uniform(position, index))

    def inner_key(self, seq: DraftSequence) -> int:
        """A key of this step alone: a later step draws anew at the same positions."""
        return noise.inner_key(cast(Sequence, seq).noise_key, len(seq.token_ids) - 1)
