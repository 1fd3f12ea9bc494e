"""Attention over the paged cache, in replaceable backends.

| backend | where | bits of a row |
|---|---|---|
| `native` | CPU with a C++ compiler | exact: every row runs alone, along its own path, in position order |
| `gather` | any device, torch only | exact on the CPU: one product per row over its own keys in position order |
| `sdpa` | any device, torch only | not exact: sums depend on the rows and on the tree; faster than `gather` |

A backend is chosen at load and stays: two backends differ in bits.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from outrider import native
from outrider.cache.storage import KVStorage
from outrider.errors import ConfigError
from outrider.native.abi import Attend
from outrider.target.batch import FlatBatch, Span, row_paths
from outrider.target.pointwise import by_pieces

BackendName = Literal["native", "gather", "sdpa"]
_PAD = 512


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What a layer's attention needs besides its inputs. ``window`` 0: unlimited; ``softcap`` 0: none."""

    q_heads: int
    kv_heads: int
    dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0


class Backend(Protocol):
    """Writes k and v to the rows' slots and attends along each row's path."""

    name: BackendName
    exact: bool

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, storage: KVStorage, batch: FlatBatch, shape: HeadShape
    ) -> Tensor:
        """q [rows, q_heads, dim], k and v [rows, kv_heads, dim] -> [rows, q_heads, dim]."""
        ...


class NativeBackend:
    """The C++ kernel: each row runs alone over its own slots."""

    name: BackendName = "native"
    exact = True

    def __init__(self, library: native.Library) -> None:
        self._attend = library.attend

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, storage: KVStorage, batch: FlatBatch, shape: HeadShape
    ) -> Tensor:
        q, k, v = q.float().contiguous(), k.float().contiguous(), v.float().contiguous()
        out = torch.empty_like(q)
        args = self.arguments(storage, batch, shape)
        args.keys, args.values = storage.keys[layer].data_ptr(), storage.values[layer].data_ptr()
        args.q, args.k, args.v, args.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        args.q_stride, args.kv_stride = shape.q_heads * shape.dim, shape.kv_heads * shape.dim
        self._attend(ctypes.byref(args))
        return out

    @staticmethod
    def arguments(storage: KVStorage, batch: FlatBatch, shape: HeadShape) -> Attend:
        """The fields that do not change from layer to layer."""
        args = NativeBackend.over(storage, batch.num_rows, shape)
        args.slots, args.context = batch.slots.data_ptr(), batch.context.data_ptr()
        args.context_len = batch.context_len.data_ptr()
        args.path, args.path_start = batch.path.data_ptr(), batch.path_start.data_ptr()
        return args

    @staticmethod
    def over(storage: KVStorage, num_rows: int, shape: HeadShape) -> Attend:
        """The fields that say nothing of the rows but how many there are."""
        return Attend(
            rows=num_rows,
            q_heads=shape.q_heads,
            kv_heads=shape.kv_heads,
            dim=shape.dim,
            window=shape.window,
            scale=shape.scale,
            softcap=shape.softcap,
            threads=native.threads(),
            half=int(storage.dtype == torch.float16),
        )


def _row_slots(span: Span) -> list[list[int]]:
    """Slots that each row sees, in position order."""
    if span.parents is None and span.paths is None:
        slots = span.context[: span.start + len(span.tokens)].tolist()
        return [slots[: span.start + row + 1] for row in range(len(span.tokens))]
    before = span.context[: span.start].tolist()
    return [before + path for path in row_paths(span)]


class GatherBackend:
    """Torch only, exact on the CPU: each row is one batch entry over its own keys, padded to a multiple of 512."""

    name: BackendName = "gather"
    exact = True

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, storage: KVStorage, batch: FlatBatch, shape: HeadShape
    ) -> Tensor:
        storage.write(layer, batch.slots, k, v)
        out = q.new_empty(q.shape, dtype=torch.float32)
        for row, (slots, mask) in enumerate(self._plan(batch, shape.window, storage.device)):
            keys, values = (
                part.float().transpose(0, 1) for part in storage.read(layer, slots)
            )  # [kv_heads, padded, dim]
            query = q[row].float().view(shape.kv_heads, -1, shape.dim)
            out[row] = _attend_one(query, keys, values, mask, shape).reshape(shape.q_heads, shape.dim)
        return out

    @staticmethod
    def _plan(batch: FlatBatch, window: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        key = f"gather:{window}"
        if key not in batch.cache:
            rows: list[tuple[Tensor, Tensor]] = []
            for span in batch.spans:
                for slots in _row_slots(span):
                    padded = -(-len(slots) // _PAD) * _PAD
                    mask = torch.zeros(padded, device=device)
                    mask[len(slots) :] = -torch.inf
                    if window and len(slots) > window:
                        mask[: len(slots) - window] = -torch.inf
                    rows.append((torch.tensor(slots + [slots[0]] * (padded - len(slots)), device=device), mask))
            batch.cache[key] = rows
        return batch.cache[key]  # type: ignore[return-value]


def _attend_one(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, shape: HeadShape) -> Tensor:
    """query [kv_heads, group, dim], keys and values [kv_heads, n, dim], mask [n] or [group, n] -> like query."""
    scores = torch.matmul(query, keys.transpose(1, 2)) * shape.scale
    if shape.softcap:
        scores = shape.softcap * by_pieces(torch.tanh, scores / shape.softcap)
    return torch.matmul(torch.softmax(scores + mask, dim=-1), values)


class SdpaBackend:
    """Torch's scaled_dot_product_attention per sequence; query heads of a group are folded into the query length."""

    name: BackendName = "sdpa"
    exact = False

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, storage: KVStorage, batch: FlatBatch, shape: HeadShape
    ) -> Tensor:
        storage.write(layer, batch.slots, k, v)
        out = torch.empty_like(q)
        group = shape.q_heads // shape.kv_heads
        plan = self._plan(batch, shape.window, group, storage.device)
        for first, (slots, mask), span in zip(batch.first_rows, plan, batch.spans, strict=True):
            rows = len(span.tokens)
            keys, values = (part.to(q.dtype).transpose(0, 1) for part in storage.read(layer, slots))
            query = q[first : first + rows].view(rows, shape.kv_heads, group, shape.dim)
            query = query.permute(1, 2, 0, 3).reshape(shape.kv_heads, group * rows, shape.dim)
            if shape.softcap:
                result = _attend_one(query, keys, values, mask.to(q.dtype), shape)
            else:
                result = torch.nn.functional.scaled_dot_product_attention(
                    query[None], keys[None], values[None], attn_mask=mask.to(q.dtype), scale=shape.scale
                )[0]
            result = result.view(shape.kv_heads, group, rows, shape.dim).permute(2, 0, 1, 3)
            out[first : first + rows] = result.reshape(rows, shape.q_heads, shape.dim)
        return out

    @staticmethod
    def _plan(batch: FlatBatch, window: int, group: int, device: torch.device) -> list[tuple[Tensor | slice, Tensor]]:
        key = f"sdpa:{window}"
        if key not in batch.cache:
            batch.cache[key] = [_span_plan(span, window, group, device) for span in batch.spans]
        return batch.cache[key]  # type: ignore[return-value]


def _span_plan(span: Span, window: int, group: int, device: torch.device) -> tuple[Tensor | slice, Tensor]:
    """Slots that any row of the span sees (a slice when contiguous), and the additive mask [group * rows, slots]."""
    before = span.context[: span.start].tolist()
    if span.parents is None and span.paths is None:
        slots = span.context[: span.start + len(span.tokens)].tolist()
        seen = torch.ones(len(span.tokens), len(slots), dtype=torch.bool).tril(span.start)
    else:
        paths = row_paths(span)
        behind = list(dict.fromkeys(slot for path in paths for slot in path))
        column = {slot: span.start + at for at, slot in enumerate(behind)}
        slots = before + behind
        seen = torch.zeros(len(paths), len(slots), dtype=torch.bool)
        seen[:, : span.start] = True
        for row, path in enumerate(paths):
            seen[row, [column[slot] for slot in path]] = True
    if window:  # the last ``window`` keys that a row sees: its keys stand in position order
        seen &= seen.flip(1).cumsum(1).flip(1) <= window
    mask = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf).repeat(group, 1).to(device)
    first = slots[0]
    if slots == list(range(first, first + len(slots))):
        return slice(first, first + len(slots)), mask
    return torch.tensor(slots, device=device), mask


def choose(device: torch.device, exact: bool, name: BackendName | None = None) -> Backend:
    """The attention backend for a device; ``name`` overrides. The kernels serve both modes where they exist.

    Raises ConfigError when ``name`` is unknown or cannot be had.
    """
    if name is not None and name not in get_args(BackendName):
        raise ConfigError(f"attention backend {name!r} is unknown; choose one of {', '.join(get_args(BackendName))}")
    on_cpu = device.type == "cpu"
    library = native.library() if on_cpu and name in (None, "native") else None
    if library is not None:
        return NativeBackend(library)
    if name == "native":
        reason = native.status().reason if on_cpu else f"it does not run on {device.type}"
        raise ConfigError(f"attention backend native is not available ({reason}); use gather or sdpa")
    return GatherBackend() if name == "gather" or (name is None and exact and on_cpu) else SdpaBackend()
