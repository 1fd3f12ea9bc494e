"""Rotary scaling of GGUF files, which transformers' reader drops.

A Llama 3 file holds the divisors of its frequencies as the tensor ``rope_freqs.weight``; they are recognised and put
into the config as the scaling they were made from (``llama3`` in transformers). Anything else is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from outrider.errors import ModelError

LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def set_rotary(path: Path, metadata: dict[str, Any], factors: dict[str, list[float]], config: Any) -> None:
    """Put the file's rotary scaling into ``config``; ``factors``: its ``rope_*`` tensors by name.

    Raises ModelError when the scaling is one that the config cannot be given.
    """
    kind = metadata.get(f"{metadata.get('general.architecture')}.rope.scaling.type", "none")
    divisors = factors.get("rope_freqs.weight")
    lost = (
        [f"rope.scaling.type={kind}"] if kind != "none" else [name for name in factors if name != "rope_freqs.weight"]
    )
    if divisors is not None and not lost:
        config.rope_parameters = {**LLAMA3, "rope_theta": config.rope_parameters["rope_theta"], "factor": max(divisors)}
        lost = [] if _gives(config, divisors) else ["rope_freqs.weight"]
    if lost:
        raise ModelError(
            f"model={str(path)!r} scales its rotary frequencies in a way that is not read from GGUF ({lost[0]}): "
            "use the model's safetensors folder"
        )


def _gives(config: Any, divisors: list[float]) -> bool:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    size = 2 * len(frequencies)
    plain = config.rope_parameters["rope_theta"] ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    given = torch.tensor(divisors, dtype=torch.float64)
    return len(given) == len(frequencies) and torch.allclose(plain / frequencies.double(), given, rtol=1e-3)
