"""The small operations of a decoder layer between its linear layers, in torch: for every device and backend.

Where the native kernels hold all weights, ``fused`` does the same in one call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.cache.storage import KVStorage
from outrider.target.attention import Backend, HeadShape
from outrider.target.batch import FlatBatch
from outrider.target.pointwise import by_pieces


class TorchOps:
    """The operations of one forward. Every row is computed from its own data in a fixed order."""

    def __init__(
        self,
        backend: Backend,
        batch: FlatBatch,
        storage: KVStorage,
        shape: HeadShape,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        windows: tuple[int, ...],
    ) -> None:
        self._backend, self._batch, self._storage, self._shape, self._eps = backend, batch, storage, shape, eps
        self._cos, self._sin, self._windows = cos[:, None], sin[:, None], windows

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """x [rows, hidden] += delta in place; the result is rms_norm(x) * weight."""
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
        """qkv [rows, (q_heads + 2 kv_heads) * dim]: normalise, rotate, cache, attend -> [rows, q_heads * dim]."""
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
        """gate_up [rows, 2 * n] -> silu(gate) * up [rows, n]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return by_pieces(torch.nn.functional.silu, gate) * up
