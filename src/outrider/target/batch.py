"""The flat ragged batch of one forward: rows of all sequences, packed without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.errors import CacheError


@dataclass(slots=True)
class Span:
    """The rows of one sequence in a forward.

    ``context``: int32 slots of the sequence in position order, as one contiguous tensor that covers every position
    of the span when it is a chain. ``start``: position of the first row; everything before it is in the cache.
    ``parents``: None for a chain (prefill chunk, plain step, chain draft); else the row above each row within the
    span, -1 for a row that sees the context alone. ``slots``: where each row's key and value go; None: the slots of
    ``context`` from ``start`` on. ``logits``: rows of the span whose logits are wanted, None for all. ``paths``: slots
    of each row's ancestors that are cached already (a tree that is grown level by level); then ``parents`` is None.
    """

    tokens: Sequence[int]
    context: Tensor
    start: int
    parents: Sequence[int] | None = None
    slots: Sequence[int] | None = None
    logits: Sequence[int] | None = None
    paths: Sequence[Sequence[int]] | None = None

    def depths(self) -> list[int]:
        """Distance of each row from ``start``."""
        if self.paths is not None:
            return [len(path) for path in self.paths]
        if self.parents is None:
            return list(range(len(self.tokens)))
        out: list[int] = []
        for parent in self.parents:
            out.append(0 if parent < 0 else out[parent] + 1)
        return out


@dataclass(slots=True)
class FlatBatch:
    """Tensors of one forward. Row r attends to ``context[r][:context_len[r]]`` and then to its own ``path``.

    tokens, positions: int64 [rows]; slots: int32 [rows]; context: int64 [rows], addresses of int32 slot arrays;
    context_len: int32 [rows]; path: int32 [sum of path lengths], path_start: int32 [rows + 1];
    logit_rows: int64 [wanted] or None when every row is wanted; spans with their first rows for other backends.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    context: Tensor
    context_len: Tensor
    path: Tensor
    path_start: Tensor
    logit_rows: Tensor | None
    spans: Sequence[Span]
    first_rows: Sequence[int]
    num_logits: int
    cache: dict[str, object] = field(default_factory=dict)  # masks and gathers that a backend derives once a forward

    @property
    def num_rows(self) -> int:
        """Rows in this forward."""
        return self.tokens.shape[0]


def flatten(spans: Sequence[Span]) -> FlatBatch:
    """Pack ``spans`` into one flat batch (host tensors; the target moves what its backend needs).

    Raises CacheError when a span has fewer slots than rows.
    """
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[Tensor] = []
    context: list[int] = []
    context_len: list[int] = []
    path: list[int] = []
    path_start = [0]
    wanted: list[int] = []
    first_rows: list[int] = []
    everything = True
    for span in spans:
        first, count = len(tokens), len(span.tokens)
        _check(span)
        first_rows.append(first)
        tokens.extend(span.tokens)
        context.extend([span.context.data_ptr()] * count)
        if span.slots is None:
            slots.append(span.context[span.start : span.start + count])
        else:
            slots.append(torch.tensor(span.slots, dtype=torch.int32))
        if span.paths is None and span.parents is None:
            positions.extend(range(span.start, span.start + count))
            context_len.extend(range(span.start + 1, span.start + count + 1))
            path_start.extend([len(path)] * count)
        else:
            positions.extend(span.start + depth for depth in span.depths())
            context_len.extend([span.start] * count)
            for row_path in row_paths(span):
                path.extend(row_path)
                path_start.append(len(path))
        if span.logits is None:
            wanted.extend(range(first, first + count))
        else:
            everything = everything and len(span.logits) == count
            wanted.extend(first + row for row in span.logits)
    return FlatBatch(
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        slots=slots[0].contiguous() if len(slots) == 1 else torch.cat(slots),
        context=torch.tensor(context),
        context_len=torch.tensor(context_len, dtype=torch.int32),
        path=torch.tensor(path, dtype=torch.int32),
        path_start=torch.tensor(path_start, dtype=torch.int32),
        logit_rows=None if everything else torch.tensor(wanted, dtype=torch.int64),
        spans=spans,
        first_rows=first_rows,
        num_logits=len(wanted),
    )


def _check(span: Span) -> None:
    """Raise CacheError when a row would read or write beyond the slots that the span has: kernels do not look."""
    chain = span.paths is None and span.parents is None
    reached = span.start + (len(span.tokens) if chain or span.slots is None else 0)
    if not 0 <= span.start <= reached <= len(span.context):
        raise CacheError(
            f"a span of {len(span.tokens)} rows from position {span.start} on needs {reached} slots, and its context "
            f"has {len(span.context)}"
        )


def row_paths(span: Span) -> list[list[int]]:
    """For each row of a span that is no chain: the slots of its ancestors behind ``start``, and its own."""
    own = span.slots if span.slots is not None else span.context[span.start : span.start + len(span.tokens)].tolist()
    if span.paths is not None:
        return [[*path, slot] for path, slot in zip(span.paths, own, strict=True)]
    out: list[list[int]] = []
    for slot, parent in zip(own, span.parents or (), strict=True):
        out.append([*(out[parent] if parent >= 0 else ()), slot])
    return out
