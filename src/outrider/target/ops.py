"""The small operations of a decoder layer between its linear layers: native, or the torch twin.

Both compute every row from its own data in a fixed order; they differ from each other in bits, so a loaded model keeps
to one of them.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch
from torch import Tensor

from outrider import native
from outrider.cache.storage import KVStorage
from outrider.native.build import Attend
from outrider.target.attention import Backend, HeadShape, NativeBackend
from outrider.target.batch import FlatBatch
from outrider.target.pointwise import by_pieces


class LayerOps(Protocol):
    """Operations of one forward; made for one batch, so that buffers and addresses are set up once."""

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """x [rows, hidden] += delta in place; the result is rms_norm(x) * weight in a buffer that is reused."""
        ...

    def attend(self, qkv: Tensor, layer: int, q_norm: Tensor | None, k_norm: Tensor | None) -> Tensor:
        """qkv [rows, (q_heads + 2 kv_heads) * dim]: normalise, rotate, cache, attend -> [rows, q_heads * dim]."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [rows, 2 * n] -> silu(gate) * up [rows, n]."""
        ...


class NativeOps:
    """The kernels of native/kernels.cpp."""

    def __init__(
        self,
        library: native.Library,
        batch: FlatBatch,
        storage: KVStorage,
        shape: HeadShape,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        hidden: int,
        window_of: tuple[int, ...],
    ) -> None:
        rows = batch.num_rows
        self._add_norm, self._silu_mul, self._attend = library.add_rms_norm, library.silu_mul, library.attend
        self._rows, self._hidden, self._eps = rows, hidden, eps
        self._normed = torch.empty(rows, hidden)
        self._heads = torch.empty(rows, shape.q_heads * shape.dim)
        self._gated: Tensor | None = None
        self._threads = torch.get_num_threads()
        self._windows = window_of
        self._kv, self._kv_bytes = storage.kv.data_ptr(), storage.kv[0, 0].numel() * storage.kv.element_size()
        self._offsets = (4 * shape.q_heads * shape.dim, 4 * (shape.q_heads + shape.kv_heads) * shape.dim)
        args = NativeBackend.arguments(storage, batch, shape)
        self._cos, self._sin = cos, sin  # kept alive: the kernel holds their addresses
        args.cos, args.sin, args.rotary, args.eps = cos.data_ptr(), sin.data_ptr(), 2 * cos.shape[1], eps
        args.out = self._heads.data_ptr()
        args.q_stride = args.kv_stride = (shape.q_heads + 2 * shape.kv_heads) * shape.dim
        self._args, self._pointer = args, ctypes.byref(args)

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        self._add_norm(
            x.data_ptr(),
            None if delta is None else delta.data_ptr(),
            weight.data_ptr(),
            self._normed.data_ptr(),
            self._rows,
            self._hidden,
            self._eps,
        )
        return self._normed

    def attend(self, qkv: Tensor, layer: int, q_norm: Tensor | None, k_norm: Tensor | None) -> Tensor:
        args: Attend = self._args
        start = qkv.data_ptr()
        args.q, args.k, args.v = start, start + self._offsets[0], start + self._offsets[1]
        args.keys = self._kv + 2 * layer * self._kv_bytes
        args.values = args.keys + self._kv_bytes
        args.window = self._windows[layer]
        args.q_norm = None if q_norm is None else q_norm.data_ptr()
        args.k_norm = None if k_norm is None else k_norm.data_ptr()
        self._attend(self._pointer)
        return self._heads

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if self._gated is None:
            self._gated = torch.empty(self._rows, gate_up.shape[1] // 2)
        self._silu_mul(gate_up.data_ptr(), self._gated.data_ptr(), self._rows, self._gated.shape[1], self._threads)
        return self._gated


class TorchOps:
    """The same operations in torch, on any device, over any attention backend."""

    def __init__(
        self,
        backend: Backend,
        batch: FlatBatch,
        storage: KVStorage,
        shape: HeadShape,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        hidden: int,
        window_of: tuple[int, ...],
    ) -> None:
        self._backend, self._batch, self._storage, self._shape, self._eps = backend, batch, storage, shape, eps
        self._cos, self._sin, self._windows = cos[:, None], sin[:, None], window_of

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        if delta is not None:
            x += delta
        return self._norm(x, weight)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._eps) * weight

    def _rotate(self, x: Tensor) -> Tensor:
        half = self._cos.shape[-1]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * self._cos - b * self._sin, b * self._cos + a * self._sin, rest], dim=-1)

    def attend(self, qkv: Tensor, layer: int, q_norm: Tensor | None, k_norm: Tensor | None) -> Tensor:
        shape = self._shape
        heads = qkv.view(qkv.shape[0], -1, shape.dim)
        keys_at, values_at = shape.q_heads, shape.q_heads + shape.kv_heads
        q, k, v = heads[:, :keys_at], heads[:, keys_at:values_at], heads[:, values_at:]
        q = self._rotate(q if q_norm is None else self._norm(q, q_norm))
        k = self._rotate(k if k_norm is None else self._norm(k, k_norm))
        if self._windows[layer] != shape.window:
            shape = HeadShape(
                shape.q_heads, shape.kv_heads, shape.dim, shape.scale, self._windows[layer], shape.softcap
            )
        return self._backend(q, k, v, layer, self._storage, self._batch, shape).reshape(qkv.shape[0], -1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return by_pieces(torch.nn.functional.silu, gate) * up
