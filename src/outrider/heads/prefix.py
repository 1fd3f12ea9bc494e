"""Hydra++'s prefix layer as it drafts: packed weights, and a cache of one sequence's keys, values and outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.cache.rows import Rows
from outrider.heads.decoder import KernelNorm
from outrider.heads.hydra_plus import HydraPlus
from outrider.heads.recurrent import factors, rotate
from outrider.target.packer import Packer


class PrefixCache:
    """What a sequence's rows left behind: keys and values [rows, heads * dim], outputs [rows, hidden]."""

    def __init__(self) -> None:
        self.keys, self.values, self.outputs = Rows(), Rows(), Rows()

    def __len__(self) -> int:
        return len(self.outputs)

    def cut(self, length: int) -> None:
        """Forget what lies behind ``length`` rows."""
        for rows in (self.keys, self.values, self.outputs):
            rows.cut(length)


class PrefixDecoder:
    """``extend`` over packed weights of a prefix layer."""

    def __init__(self, head: HydraPlus, packer: Packer) -> None:
        block, attention = head.prefix, head.prefix.self_attn
        self._config = head.config
        self._input_norm, self._mlp_norm = (
            KernelNorm(norm).requires_grad_(False) for norm in (block.input_layernorm, block.post_attention_layernorm)
        )
        self._qkv = packer.matrix(torch.cat([p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)]))
        self._out = packer.matrix(attention.o_proj.weight)
        self._gate_up = packer.matrix(torch.cat([block.mlp.gate_proj.weight, block.mlp.up_proj.weight]))
        self._down = packer.matrix(block.mlp.down_proj.weight)

    @torch.inference_mode()
    def extend(self, cache: PrefixCache, features: Tensor) -> None:
        """Compute the rows of the next features [rows, hidden] float32."""
        config, first, end = self._config, len(cache), len(cache) + len(features)
        positions = torch.arange(end, device=features.device)
        rotary = factors(positions[first:], config)
        width = config.num_key_value_heads * config.head_dim
        joint = self._qkv.rows(self._input_norm(features))
        q, k = (rotate(self._split(part), rotary) for part in (joint[:, : -2 * width], joint[:, -2 * width : -width]))
        cache.keys.add(k.transpose(0, 1).flatten(1))
        cache.values.add(joint[:, -width:])
        keys, values = self._split(cache.keys.all()), self._split(cache.values.all())
        seen = positions <= positions[first:, None]
        attended = nn.functional.scaled_dot_product_attention(
            q[None], keys[None], values[None], attn_mask=seen, enable_gqa=True
        )
        x = features + self._out.rows(attended[0].transpose(0, 1).flatten(1))
        gate, up = self._gate_up.rows(self._mlp_norm(x)).chunk(2, dim=1)
        cache.outputs.add(x + self._down.rows(nn.functional.silu(gate) * up))

    def _split(self, x: Tensor) -> Tensor:
        """[rows, heads * dim] -> [heads, rows, dim]."""
        return x.view(len(x), -1, self._config.head_dim).transpose(0, 1)
