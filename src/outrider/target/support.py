"""Which architectures can be served, decided from the config and an empty model before any weight is read.

A served model keeps everything it remembers in per-position keys and values, so that rejected rows can be dropped,
and lets transformers' attention interface compute its attention.
"""

from __future__ import annotations

from typing import Any

import torch

from outrider.errors import ModelError

LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
RECURRENT_LAYERS = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv", "hybrid", "hybrid_sliding"})
RECURRENT = "it is recurrent or hybrid, and its state cannot be rolled back after a rejected draft"


def refuse_unsupported(name: str, config: Any) -> None:
    """Raise ModelError, with the reason, when a model of this config cannot be a target or a draft model."""
    reason = _from_config(config) or _from_class(config) or _from_empty_model(config)
    if reason is not None:
        kind = getattr(config, "model_type", None) or type(config).__name__
        raise ModelError(f"model={name!r} ({kind}) is not supported: {reason}; use a decoder-only attention model")


def _from_config(config: Any) -> str | None:
    layer_types = set(getattr(config, "layer_types", None) or ())
    others = sorted(layer_types - LAYER_TYPES)
    parts = sorted(set(getattr(config, "sub_configs", None) or {}) - {"text_config"})
    checks = {
        "it is an encoder-decoder": bool(getattr(config, "is_encoder_decoder", False)),
        RECURRENT: bool(layer_types & RECURRENT_LAYERS),
        f"its layers of type {', '.join(others)} have no kernel here": bool(others),
        f"it is multimodal ({', '.join(parts)}), and only text is served": bool(parts),
        "its keys and values are compressed (multi-head latent attention)": bool(getattr(config, "kv_lora_rank", None)),
        "its layers share keys and values": bool(getattr(config, "num_kv_shared_layers", None)),
        "its head size differs between layers": getattr(config, "global_head_dim", None)
        not in (None, getattr(config, "head_dim", None)),
        "its attention is not causal": bool(getattr(config, "use_bidirectional_attention", False)),
        "its attention uses ALiBi biases": bool(getattr(config, "alibi", False)),
        "its checkpoint is quantised; take the float checkpoint or a GGUF file": bool(
            getattr(config, "quantization_config", None)
        ),
    }
    return next((reason for reason, applies in checks.items() if applies), None)


def _from_class(config: Any) -> str | None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        # code from the hub (trust_remote_code) brings a class that the mapping does not know
        return None if getattr(config, "auto_map", None) else "transformers has no causal language model for it"
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if getattr(kind, "_is_stateful", False):
        return RECURRENT
    if not getattr(kind, "_supports_attention_backend", False):
        return "its transformers class computes attention itself"
    return None


def _from_empty_model(config: Any) -> str | None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    with torch.device("meta"):
        empty = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
    sinks = any("sink" in name.rpartition(".")[2] for name, _ in empty.named_parameters())
    return "its attention has sinks" if sinks else None
