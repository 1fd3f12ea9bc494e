"""A recurrent head as it drafts: packed weights, a paged cache of its own, rows of many sequences in one call."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider import native
from outrider.cache.storage import KVStorage
from outrider.errors import NumericsError
from outrider.heads.eagle3 import Eagle3
from outrider.heads.recurrent import Norm, RecurrentHead, factors
from outrider.target.attention import Backend, HeadShape, NativeBackend
from outrider.target.batch import Span, flatten
from outrider.target.fused import DAMAGED, ChainLinks, ChainRoot, FusedDecoder, LayerWeights, can_fuse
from outrider.target.ops import TorchOps
from outrider.target.packer import Packer

_TABLES = (torch.float32, torch.float16, torch.bfloat16)  # embeddings that the kernels read


class HeadDecoder:
    """``forward`` over packed weights of a recurrent head."""

    def __init__(self, head: RecurrentHead, packer: Packer, backend: Backend, kv_dtype: torch.dtype) -> None:
        config = self.config = head.config
        self.target_ids = head.target_ids
        self.device = head.fc.weight.device
        self._kv_dtype = kv_dtype
        self._joins = _without_matrices(head)
        layer, attention = head.midlayer, head.midlayer.self_attn
        self._fc = packer.matrix(head.fc.weight, None if head.fc.bias is None else head.fc.bias.detach().float())
        mlp_norm = _weight(layer.post_attention_layernorm)
        self._layer = LayerWeights(
            norm=mlp_norm,  # never looked at: ``forward`` hands the projections what they see
            qkv=packer.matrix(torch.cat([p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)])),
            q_norm=None,
            k_norm=None,
            out=packer.matrix(attention.o_proj.weight),
            out_norm=None,
            mlp_norm=mlp_norm,
            gate_up=packer.matrix(torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])),
            down=packer.matrix(layer.mlp.down_proj.weight),
            down_norm=None,
            window=0,
            factors=0,
        )
        self._head = packer.matrix(head.lm_head.weight)
        self._shape = HeadShape(
            config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.head_dim**-0.5
        )
        self._backend = backend
        positions = torch.arange(config.max_position_embeddings, device=self.device)
        self._cos, self._sin = (part[None].contiguous() for part in factors(positions, config))
        library = native.library() if isinstance(backend, NativeBackend) else None
        self._fused: FusedDecoder | None = None
        if library is not None and can_fuse([*self._layer.linears, self._head]):
            norm = None if head.norm is None else _weight(head.norm)
            eps = config.rms_norm_eps
            self._fused = FusedDecoder(library, [self._layer], norm, self._head, self._shape, eps, False)

    def new_storage(self, num_slots: int, block_size: int) -> KVStorage:
        """A zeroed cache."""
        shape = (1, num_slots, self._shape.kv_heads, self._shape.dim)
        return KVStorage(*shape, self._kv_dtype, self.device, block_size=block_size)

    @torch.inference_mode()
    def enter(self, features: Tensor) -> Tensor:
        """The target's features [rows, width] as the first step's hidden states [rows, hidden]."""
        return self._joins.enter(features.float(), self._fc.rows)

    def links(self, table: tuple[Tensor, float] | None) -> ChainLinks | None:
        """What a chain over the embeddings ``table`` needs; None where the kernels cannot draft one with this head."""
        joins = self._joins
        if self._fused is None or table is None or not isinstance(joins, Eagle3) or table[0].dtype not in _TABLES:
            return None
        block, out = joins.midlayer, joins.norm if self.config.norm_output else None
        return ChainLinks(
            embedding=table[0],
            scale=table[1],
            token_norm=_weight(block.input_layernorm),
            hidden_norm=_weight(block.hidden_norm),
            out_norm=None if out is None else _weight(out),
            ids=self.target_ids,
            normed_residual=self.config.norm_before_residual,
        )

    def chain(self, links: ChainLinks, root: ChainRoot, storage: KVStorage) -> list[float]:
        """Draft the likeliest tokens one behind the other; see ``FusedDecoder.chain``."""
        assert self._fused is not None
        return self._fused.chain(links, root, storage, self._cos[0], self._sin[0])

    @torch.inference_mode()
    def forward(
        self, spans: Sequence[Span], storage: KVStorage, embedded: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """embedded and hidden [rows, hidden] float32, of the rows of ``spans``.

        Logits over the draft vocabulary [wanted, draft vocab] and what the rows below them take [rows, hidden]. Raises
        NumericsError when a logit is NaN or +infinity.
        """
        batch = flatten(spans)
        positions = batch.positions.to(self.device)
        cos, sin = self._cos[:, positions], self._sin[:, positions]
        inputs, residual = self._joins.join(embedded, hidden, self._fc.rows)
        if self._fused is not None:
            logits, tapped = self._fused.forward(residual.clone(), batch, storage, cos, sin, (0,), inputs=inputs)
            assert tapped is not None
            return logits, self._joins.hand_down(tapped)
        ops = TorchOps(self._backend, batch, storage, self._shape, self.config.rms_norm_eps, cos, sin)
        x = residual + self._layer.out.rows(ops.attend(self._layer.qkv.rows(inputs), 0, self._layer))
        gated = ops.gate(self._layer.gate_up.rows(ops.norm(x, self._layer.mlp_norm)), False)
        x = x + self._layer.down.rows(gated)
        last = x if batch.logit_rows is None else x[batch.logit_rows.to(self.device)]
        if not batch.num_logits:
            return x.new_empty(0, self._head.out_features), self._joins.hand_down(x)
        logits = self._head(self._joins.leave(last))
        if not bool(torch.isfinite(logits.amax())):
            raise NumericsError(DAMAGED)
        return logits, self._joins.hand_down(x)


def _weight(norm: Norm) -> Tensor:
    return norm.weight.detach().to(torch.float32, copy=True)


def _without_matrices(head: RecurrentHead) -> RecurrentHead:
    """``head`` with its norms alone, to join and to leave by."""
    with torch.device("meta"):
        out = type(head)(head.config)
    for name, module in head.named_modules():
        if isinstance(module, Norm):
            out.set_submodule(name, KernelNorm(module))
    return out.requires_grad_(False)


class KernelNorm(Norm):
    """A norm whose rows are few, and its call most of their time."""

    def __init__(self, norm: Norm) -> None:
        super().__init__(norm.normalized_shape, norm.eps)
        self.weight = copy.deepcopy(norm.weight)
        self._kernel = None if (library := native.library()) is None else library.norm

    def forward(self, x: Tensor) -> Tensor:
        """x [rows, hidden] -> like x, float32."""
        if self._kernel is None or x.device.type != "cpu" or self.weight.dtype != torch.float32:
            return super().forward(x)
        x = x.float().contiguous()
        out = torch.empty_like(x)
        rows, hidden = x.shape
        self._kernel(x.data_ptr(), self.weight.data_ptr(), rows, hidden, self.eps, out.data_ptr())
        return out
