"""The small operations of a decoder layer between its linear layers, in torch: for every device and backend.

Where the native kernels hold all weights, ``fused`` does the same in one call.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from outrider.cache.storage import KVStorage
from outrider.target.attention import Backend, HeadShape
from outrider.target.batch import FlatBatch
from outrider.target.fused import LayerWeights
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
    ) -> None:
        """cos and sin [kinds, rows, rotary / 2]."""
        self._backend, self._batch, self._storage, self._shape, self._eps = backend, batch, storage, shape, eps
        self._cos, self._sin = cos[:, :, None], sin[:, :, None]

    def add_norm(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """x [rows, hidden] += delta in place; the result is rms_norm(x) * weight."""
        if delta is not None:
            x += delta
        return self.norm(x, weight)

    def norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """rms_norm(x) * weight, or x without a weight."""
        return x if weight is None else rms_norm(x, weight, self._eps)

    def _rotate(self, x: Tensor, factors: int) -> Tensor:
        cos, sin = self._cos[factors], self._sin[factors]
        half = cos.shape[-1]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)

    def attend(self, qkv: Tensor, index: int, layer: LayerWeights) -> Tensor:
        """qkv [rows, (q_heads + 2 kv_heads) * dim]: normalise, rotate, cache, attend -> [rows, q_heads * dim]."""
        shape = replace(self._shape, window=layer.window)
        heads = qkv.view(qkv.shape[0], -1, shape.dim)
        keys_at, values_at = shape.q_heads, shape.q_heads + shape.kv_heads
        q, k, v = heads[:, :keys_at], heads[:, keys_at:values_at], heads[:, values_at:]
        q = self._rotate(self.norm(q, layer.q_norm), layer.factors)
        k = self._rotate(self.norm(k, layer.k_norm), layer.factors)
        return self._backend(q, k, v, index, self._storage, self._batch, shape).reshape(qkv.shape[0], -1)

    def gate(self, gate_up: Tensor, gelu: bool) -> Tensor:
        """gate_up [rows, 2 * n] -> act(gate) * up [rows, n], with SiLU or GELU in its tanh form."""
        gate, up = gate_up.chunk(2, dim=-1)
        return by_pieces(_gelu if gelu else torch.nn.functional.silu, gate) * up


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., dim] / sqrt(mean of x squared + eps) * weight [dim]."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def _gelu(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")
