"""A head's layer as it drafts: packed weights, a paged cache of its own, rows of many sequences in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider import native
from outrider.cache.storage import KVStorage
from outrider.errors import NumericsError
from outrider.heads.config import HeadConfig
from outrider.heads.eagle3 import Eagle3, factors
from outrider.target.attention import Backend, HeadShape, NativeBackend
from outrider.target.batch import Span, flatten
from outrider.target.fused import DAMAGED, FusedDecoder, LayerWeights, can_fuse
from outrider.target.ops import TorchOps, rms_norm
from outrider.target.packer import Packer


class HeadDecoder:
    """``forward`` over packed weights of an EAGLE-3 head."""

    def __init__(self, head: Eagle3, packer: Packer, backend: Backend, kv_dtype: torch.dtype) -> None:
        self.config: HeadConfig = head.config
        config = head.config
        self.target_ids = head.target_ids
        self.device = head.fc.weight.device
        self._kv_dtype = kv_dtype
        layer, attention = head.midlayer, head.midlayer.self_attn
        self._token_norm, self._feature_norm = _norm(layer.input_layernorm), _norm(layer.hidden_norm)
        self._fc = packer.matrix(head.fc.weight)
        self._layer = LayerWeights(
            norm=self._feature_norm,  # ``forward`` hands its projections what they see
            qkv=packer.matrix(torch.cat([p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)])),
            q_norm=None,
            k_norm=None,
            out=packer.matrix(attention.o_proj.weight),
            out_norm=None,
            mlp_norm=_norm(layer.post_attention_layernorm),
            gate_up=packer.matrix(torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])),
            down=packer.matrix(layer.mlp.down_proj.weight),
            down_norm=None,
            window=0,
            factors=0,
        )
        self._norm, self._head = _norm(head.norm), packer.matrix(head.lm_head.weight)
        self._shape = HeadShape(
            config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.head_dim**-0.5
        )
        self._backend = backend
        positions = torch.arange(config.max_position_embeddings, device=self.device)
        self._cos, self._sin = (part[None].contiguous() for part in factors(positions, config))
        library = native.library() if isinstance(backend, NativeBackend) else None
        self._fused: FusedDecoder | None = None
        if library is not None and can_fuse([*self._layer.linears, self._head]):
            eps = config.rms_norm_eps
            self._fused = FusedDecoder(library, [self._layer], self._norm, self._head, self._shape, eps, False)

    def new_storage(self, num_slots: int, block_size: int) -> KVStorage:
        """A zeroed cache."""
        shape = (1, num_slots, self._shape.kv_heads, self._shape.dim)
        return KVStorage(*shape, self._kv_dtype, self.device, block_size=block_size)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features [rows, layers * hidden] -> [rows, hidden]."""
        return self._fc.rows(features.float())

    @torch.inference_mode()
    def forward(
        self, spans: Sequence[Span], storage: KVStorage, embedded: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """embedded and hidden [rows, hidden] float32, of the rows of ``spans``; ``hidden`` is overwritten.

        Logits over the draft vocabulary [wanted, draft vocab] and the rows' own hidden states [rows, hidden], which the
        rows below them take. Raises NumericsError when a logit is NaN or +infinity.
        """
        batch = flatten(spans)
        positions = batch.positions.to(self.device)
        cos, sin = self._cos[:, positions], self._sin[:, positions]
        eps = self.config.rms_norm_eps
        normed = rms_norm(embedded, self._token_norm, eps), rms_norm(hidden, self._feature_norm, eps)
        inputs = torch.cat(normed, dim=1)
        if self._fused is not None:
            logits, tapped = self._fused.forward(hidden, batch, storage, cos, sin, (0,), inputs=inputs)
            assert tapped is not None
            return logits, tapped
        ops = TorchOps(self._backend, batch, storage, self._shape, eps, cos, sin)
        delta = self._layer.out.rows(ops.attend(self._layer.qkv.rows(inputs), 0, self._layer))
        gated = ops.gate(self._layer.gate_up.rows(ops.add_norm(hidden, delta, self._layer.mlp_norm)), False)
        hidden = hidden + self._layer.down.rows(gated)
        last = ops.norm(hidden, self._norm)
        if batch.logit_rows is not None:
            last = last[batch.logit_rows.to(self.device)]
        logits = self._head(last) if batch.num_logits else last.new_empty(0, self._head.out_features)
        if logits.numel() and not bool(torch.isfinite(logits.amax())):
            raise NumericsError(DAMAGED)
        return logits, hidden


def _norm(module: torch.nn.RMSNorm) -> Tensor:
    return module.weight.detach().to(torch.float32, copy=True)
