"""Rotary frequencies that do not depend on what else is in the batch.

transformers chooses LongRoPE's factors (arXiv 2402.13753) and dynamic NTK's base by the longest position of the whole
forward, so in a flat batch a long sequence would change the rows of a short one. Here the longest length that the
engine admits decides once.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from outrider.errors import ModelError

FIXED = "default"  # a rope type that transformers does not update in the forward


def fix_rotary(model: nn.Module, max_model_len: int) -> None:
    """Set every length-dependent rotary module of ``model`` to its frequencies for ``max_model_len`` tokens, in place.

    LongRoPE takes its long factors when ``max_model_len`` is over the original context, for short texts as well.
    Raises ModelError for a length-dependent rope type that is not known.
    """
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str):
            if _moves(kinds):
                _fix(module, kinds, None, max_model_len)
                module.rope_type = FIXED  # type: ignore[assignment]
        elif isinstance(kinds, dict):  # one type per kind of layer
            for layer_type, kind in kinds.items():
                if _moves(kind):
                    _fix(module, kind, layer_type, max_model_len)
            module.rope_type = {key: FIXED if _moves(kind) else kind for key, kind in kinds.items()}  # type: ignore[assignment]


def _moves(kind: str) -> bool:
    return kind == "longrope" or "dynamic" in kind


def _fix(module: nn.Module, kind: str, layer_type: str | None, max_model_len: int) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind not in ROPE_INIT_FUNCTIONS:
        raise ModelError(f"rope_type={kind!r} depends on the length of the batch and is not known: use another model")
    prefix = "" if layer_type is None else f"{layer_type}_"
    buffer: Any = getattr(module, f"{prefix}inv_freq")
    options = {} if layer_type is None else {"layer_type": layer_type}
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](
        module.config,
        buffer.device,
        seq_len=max_model_len,
        **options,
    )
    buffer.data = frequencies.to(buffer.dtype)
    setattr(module, f"{prefix}attention_scaling", scaling)
