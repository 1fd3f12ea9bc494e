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
from outrider.target.architecture import Architecture, factor_tables, layer_weights, norm_weight
from outrider.target.attention import Backend, NativeBackend
from outrider.target.batch import FlatBatch
from outrider.target.formats import STORED_AS
from outrider.target.fused import FusedDecoder, can_fuse
from outrider.target.ops import TorchOps, rms_norm
from outrider.target.packed import PackedLinear
from outrider.target.packer import Packer
from outrider.target.pointwise import by_pieces
from outrider.target.rotary import RotaryTable
from outrider.target.skip import ATTENTION, MLP


class LeanDecoder:
    """Embedding, layers, final norm and head of a model, in float32 activations over packed weights."""

    unpacked = None  # every matrix is packed

    def __init__(self, model: Any, packer: Packer, backend: Backend, rotary: RotaryTable) -> None:
        config, body = model.config, model.model
        self.architecture = Architecture.of(model)
        self.hidden = int(config.hidden_size)
        kinds, self.cos, self.sin = factor_tables(rotary)
        self.backend = backend
        head = model.get_output_embeddings()
        self.embedding = body.embed_tokens.weight.detach().to(STORED_AS[packer.weight_format])
        packer.name_modules(model)
        self.head = packer.linear(head)
        norm = norm_weight(config, body.norm)
        assert norm is not None
        self.norm = norm
        self.layers = []
        for index, layer in enumerate(body.layers):
            self.layers.append(layer_weights(config, layer, packer, kinds))
            body.layers[index] = nn.Identity()  # its weights are packed now: give the memory back
        body.norm = nn.Identity()
        model.set_input_embeddings(nn.Identity())
        model.set_output_embeddings(nn.Identity())
        library = native.library() if isinstance(backend, NativeBackend) else None
        self._fused: FusedDecoder | None = None
        if library is not None and can_fuse(self.linears):
            facts = self.architecture
            self._fused = FusedDecoder(library, self.layers, self.norm, self.head, facts.shape, facts.eps, facts.gelu)

    @property
    def checks_logits(self) -> bool:
        """A forward raises when its logits are damaged: nobody else need look."""
        return self._fused is not None

    @property
    def linears(self) -> list[PackedLinear]:
        """Every packed matrix."""
        return [linear for layer in self.layers for linear in layer.linears] + [self.head]

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [rows] -> [rows, hidden] float32."""
        x: Tensor = self.embedding[tokens].float()
        return x if self.architecture.embedding_scale == 1.0 else x * self.architecture.embedding_scale

    @property
    def embedding_table(self) -> tuple[Tensor, float]:
        """The embeddings as they are stored [vocab, hidden], and what they are multiplied with."""
        return self.embedding, float(self.architecture.embedding_scale)

    def normed(self, hidden: Tensor) -> Tensor:
        """The last layer's output [rows, hidden] behind the final norm."""
        return rms_norm(hidden, self.norm, self.architecture.eps)

    def forward(
        self, batch: FlatBatch, storage: KVStorage, hidden_layers: Sequence[int] = (), skip: bytes | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [wanted, vocab] and, when asked, the outputs of ``hidden_layers`` [rows, layers * hidden].

        ``skip``: sublayers that add nothing and cache nothing (``target/skip.py``).
        """
        device, facts = self.embedding.device, self.architecture
        positions = batch.positions.to(device)
        cos, sin = self.cos[:, positions], self.sin[:, positions]
        x = self.embed(batch.tokens.to(device))
        if self._fused is not None:
            logits, hidden = self._fused.forward(x, batch, storage, cos, sin, hidden_layers, skip)
        else:
            ops = TorchOps(self.backend, batch, storage, facts.shape, facts.eps, cos, sin)
            logits, hidden = self._layer_by_layer(ops, x, batch, hidden_layers, skip)
        if facts.final_softcap and logits.numel():
            logits = facts.final_softcap * by_pieces(torch.tanh, logits / facts.final_softcap)
        return logits, hidden

    def _layer_by_layer(
        self, ops: TorchOps, x: Tensor, batch: FlatBatch, hidden_layers: Sequence[int], skip: bytes | None
    ) -> tuple[Tensor, Tensor | None]:
        delta: Tensor | None = None
        taps: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            skipped = 0 if skip is None else skip[index]
            if not skipped & ATTENTION:
                qkv = layer.qkv.rows(ops.add_norm(x, delta, layer.norm))
                delta = ops.norm(layer.out.rows(ops.attend(qkv, index, layer)), layer.out_norm)
            if not skipped & MLP:
                gated = ops.gate(layer.gate_up.rows(ops.add_norm(x, delta, layer.mlp_norm)), self.architecture.gelu)
                delta = ops.norm(layer.down.rows(gated), layer.down_norm)
            if index in hidden_layers:
                taps[index] = x.clone() if delta is None else x + delta
        normed = ops.add_norm(x, delta, self.norm)
        if batch.logit_rows is not None:
            normed = normed[batch.logit_rows.to(normed.device)]
        logits = self.head(normed) if batch.num_logits else normed.new_empty(0, self.head.out_features)
        return logits, torch.cat([taps[i] for i in hidden_layers], dim=1) if hidden_layers else None
