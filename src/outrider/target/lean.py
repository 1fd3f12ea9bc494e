"""The flattened decoder for architectures whose layer is normalise, attend, normalise, gate.

transformers still owns the architecture: weights, rotary factors and shapes are read from its loaded modules, and the
parity tests compare every row with its forward. q/k/v and gate/up become one packed matrix each. With the native
kernels a forward is one call (``fused``), else about nine calls a layer in torch (``ops``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from outrider import native
from outrider.cache.storage import KVStorage
from outrider.target.attention import Backend, HeadShape, NativeBackend
from outrider.target.batch import FlatBatch
from outrider.target.formats import STORED_AS
from outrider.target.fused import FusedDecoder, LayerWeights, can_fuse
from outrider.target.ops import TorchOps
from outrider.target.packed import PackedLinear
from outrider.target.packer import Packer
from outrider.target.rotary import RotaryTable
from outrider.target.skip import ATTENTION, MLP

LEAN_MODELS = frozenset({"llama", "mistral", "qwen2", "qwen3"})


def supports(config: Any) -> bool:
    """Whether the architecture has this layer shape."""
    return config.model_type in LEAN_MODELS and getattr(config, "hidden_act", "silu") == "silu"


class LeanDecoder:
    """Embedding, layers, final norm and head of a model, in float32 activations over packed weights."""

    unpacked = None  # every matrix is packed

    def __init__(self, model: Any, packer: Packer, backend: Backend, rotary: RotaryTable) -> None:
        config, body = model.config, model.model
        first = body.layers[0].self_attn
        self.shape = HeadShape(
            config.num_attention_heads, config.num_key_value_heads, first.head_dim, float(first.scaling)
        )
        self.windows = tuple(int(getattr(layer.self_attn, "sliding_window", 0) or 0) for layer in body.layers)
        if config.model_type == "mistral":
            self.windows = (int(config.sliding_window or 0),) * len(body.layers)
        self.eps, self.hidden = float(config.rms_norm_eps), int(config.hidden_size)
        cos, sin = rotary.tables[None]
        half = cos.shape[1] // 2  # transformers repeats the factors for the second half of a head
        self.backend, self.cos, self.sin = backend, cos[:, :half].contiguous(), sin[:, :half].contiguous()
        head = model.get_output_embeddings()
        self.embedding = body.embed_tokens.weight.detach().to(STORED_AS[packer.weight_format])
        packer.name_modules(model)
        self.head = packer.linear(head)
        self.norm = body.norm.weight.detach().float()
        self.layers = []
        for index, layer in enumerate(body.layers):
            self.layers.append(_lean_layer(layer, packer))
            body.layers[index] = nn.Identity()  # its weights are packed now: give the memory back
        model.set_input_embeddings(nn.Identity())
        model.set_output_embeddings(nn.Identity())
        library = native.library() if isinstance(backend, NativeBackend) else None
        self._fused: FusedDecoder | None = None
        if library is not None and can_fuse(self.linears):
            self._fused = FusedDecoder(library, self.layers, self.norm, self.head, self.shape, self.windows, self.eps)

    @property
    def linears(self) -> list[PackedLinear]:
        """Every packed matrix."""
        return [linear for layer in self.layers for linear in layer.linears] + [self.head]

    def forward(
        self, batch: FlatBatch, storage: KVStorage, hidden_layers: Sequence[int] = (), skip: bytes | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [wanted, vocab] and, when asked, the outputs of ``hidden_layers`` [rows, layers * hidden].

        ``skip``: sublayers that add nothing and cache nothing (``target/skip.py``).
        """
        device = self.embedding.device
        positions = batch.positions.to(device)
        cos, sin = self.cos[positions], self.sin[positions]
        x = self.embedding[batch.tokens.to(device)].float()
        if self._fused is not None:
            return self._fused.forward(x, batch, storage, cos, sin, hidden_layers, skip)
        ops = TorchOps(self.backend, batch, storage, self.shape, self.eps, cos, sin, self.windows)
        delta: Tensor | None = None
        taps: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            skipped = 0 if skip is None else skip[index]
            if not skipped & ATTENTION:
                qkv = layer.qkv.rows(ops.add_norm(x, delta, layer.norm))
                delta = layer.out.rows(ops.attend(qkv, index, layer.q_norm, layer.k_norm))
            if not skipped & MLP:
                gated = ops.silu_mul(layer.gate_up.rows(ops.add_norm(x, delta, layer.mlp_norm)))
                delta = layer.down.rows(gated)
            if index in hidden_layers:
                taps[index] = x.clone() if delta is None else x + delta
        normed = ops.add_norm(x, delta, self.norm)
        if batch.logit_rows is not None:
            normed = normed[batch.logit_rows.to(normed.device)]
        logits = self.head(normed) if batch.num_logits else normed.new_empty(0, self.head.out_features)
        return logits, torch.cat([taps[i] for i in hidden_layers], dim=1) if hidden_layers else None


def _lean_layer(layer: Any, packer: Packer) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp

    def norm(module: Any) -> Tensor | None:
        return None if module is None else module.weight.detach().float().contiguous()

    return LayerWeights(
        norm=layer.input_layernorm.weight.detach().float().contiguous(),
        qkv=packer.linear(attention.q_proj, attention.k_proj, attention.v_proj),
        q_norm=norm(getattr(attention, "q_norm", None)),
        k_norm=norm(getattr(attention, "k_norm", None)),
        out=packer.linear(attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight.detach().float().contiguous(),
        gate_up=packer.linear(mlp.gate_proj, mlp.up_proj),
        down=packer.linear(mlp.down_proj),
    )
