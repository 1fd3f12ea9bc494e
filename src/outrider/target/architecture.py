"""What the flattened decoder must know of an architecture, read from transformers' config and modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.target.attention import HeadShape
from outrider.target.fused import LayerWeights
from outrider.target.packer import Packer
from outrider.target.rotary import RotaryTable

LEAN_MODELS = frozenset({"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text"})
_GEMMA = frozenset({"gemma2", "gemma3_text"})  # norms multiply by 1 + weight, and follow each sublayer as well
_EVERY_LAYER = frozenset({"mistral", "phi3"})  # a window of the config holds for all layers


def supports(config: Any) -> bool:
    """Whether the architecture's layer is: normalise, attend, normalise, gate."""
    gate = "gelu_pytorch_tanh" if config.model_type in _GEMMA else "silu"
    bidirectional = bool(getattr(config, "use_bidirectional_attention", False))
    return config.model_type in LEAN_MODELS and _activation(config) == gate and not bidirectional


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu"))


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of the heads, and what differs between architectures outside of a layer's matrices.

    ``embedding_scale``: a factor of the embeddings. ``final_softcap``: logits become cap * tanh(logits / cap); 0: not.
    """

    shape: HeadShape
    eps: float
    gelu: bool
    embedding_scale: float
    final_softcap: float

    @classmethod
    def of(cls, model: Any) -> Architecture:
        """Of a loaded model that ``supports`` its config."""
        config, first = model.config, model.model.layers[0].self_attn
        softcap = float(getattr(config, "attn_logit_softcapping", None) or 0.0)
        heads = config.num_attention_heads, config.num_key_value_heads
        return cls(
            shape=HeadShape(*heads, first.head_dim, float(first.scaling), softcap=softcap),
            eps=float(config.rms_norm_eps),
            gelu=config.model_type in _GEMMA,
            embedding_scale=float(getattr(model.model.embed_tokens, "embed_scale", 1.0)),
            final_softcap=float(getattr(config, "final_logit_softcapping", None) or 0.0),
        )


def norm_weight(config: Any, module: Any) -> Tensor | None:
    """What a norm multiplies by [dim] float32; None without a module."""
    if module is None:
        return None
    weight: Tensor = module.weight.detach().to(torch.float32, copy=True)  # a view would keep the whole file in memory
    return weight + 1.0 if config.model_type in _GEMMA else weight


def factor_tables(rotary: RotaryTable) -> tuple[list[str | None], Tensor, Tensor]:
    """The kinds of layers, and cos and sin [kinds, positions, rotary / 2] (transformers repeats them once)."""
    kinds = list(rotary.tables)
    tables = [torch.stack([rotary.tables[kind][part] for kind in kinds]) for part in (0, 1)]
    cos, sin = (table[..., : table.shape[-1] // 2].contiguous() for table in tables)
    return kinds, cos, sin


def layer_weights(config: Any, layer: Any, packer: Packer, kinds: list[str | None]) -> LayerWeights:
    """The packed weights of one of transformers' decoder layers."""
    attention, mlp = layer.self_attn, layer.mlp
    gemma = config.model_type in _GEMMA
    window = config.sliding_window if config.model_type in _EVERY_LAYER else getattr(attention, "sliding_window", None)

    def norm(module: Any) -> Tensor | None:
        return norm_weight(config, module)

    before = norm(layer.input_layernorm)
    middle = norm(layer.pre_feedforward_layernorm if gemma else layer.post_attention_layernorm)
    assert before is not None
    assert middle is not None
    return LayerWeights(
        norm=before,
        qkv=packer.linear(*_parts(attention, "qkv_proj", "q_proj", "k_proj", "v_proj")),
        q_norm=norm(getattr(attention, "q_norm", None)),
        k_norm=norm(getattr(attention, "k_norm", None)),
        out=packer.linear(attention.o_proj),
        out_norm=norm(layer.post_attention_layernorm) if gemma else None,
        mlp_norm=middle,
        gate_up=packer.linear(*_parts(mlp, "gate_up_proj", "gate_proj", "up_proj")),
        down=packer.linear(mlp.down_proj),
        down_norm=norm(layer.post_feedforward_layernorm) if gemma else None,
        window=int(window or 0),
        factors=0 if kinds == [None] else kinds.index(attention.layer_type),
    )


def _parts(module: Any, joined: str, *names: str) -> list[Any]:
    """The one matrix of an architecture that joins them, or the single ones."""
    return [getattr(module, joined)] if hasattr(module, joined) else [getattr(module, name) for name in names]
