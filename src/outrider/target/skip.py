"""Skip masks: which sublayers a forward leaves out. One byte a layer, bits ``ATTENTION`` and ``MLP``.

What is left out adds nothing to the hidden state and caches no key and value. An early exit after layer E is the mask
that skips everything from E on. No mask and an empty mask give equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.errors import ConfigError

ATTENTION, MLP = 1, 2  # OutriderSkip in native/decoder.h
NO_SKIPPING = (
    "sublayers of {!r} models cannot be skipped: they run through transformers' own modules; "
    "use a Llama, Mistral, Qwen2 or Qwen3 model, or another method"
)


def skip_mask(
    num_layers: int, attention: Sequence[int] = (), mlp: Sequence[int] = (), exit_layer: int | None = None
) -> bytes:
    """The mask [num_layers] that skips the listed sublayers, and all from layer ``exit_layer`` on.

    Raises ConfigError for a layer that the model does not have.
    """
    mask = bytearray(num_layers)
    for name, layers, bit in (("skip_attention_layers", attention, ATTENTION), ("skip_mlp_layers", mlp, MLP)):
        for layer in layers:
            if not 0 <= layer < num_layers:
                raise ConfigError(f"{name}: the model has no layer {layer}; its layers are 0 to {num_layers - 1}")
            mask[layer] |= bit
    if exit_layer is not None:
        if exit_layer > num_layers:
            raise ConfigError(f"exit_layer={exit_layer}: the model has {num_layers} layers; lower it")
        mask[exit_layer:] = bytes([ATTENTION | MLP]) * (num_layers - exit_layer)
    return bytes(mask)


def skipped(mask: bytes, bit: int) -> list[int]:
    """Layers whose sublayer ``bit`` is left out."""
    return [layer for layer, bits in enumerate(mask) if bits & bit]
