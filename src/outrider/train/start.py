"""The weights of a target that training needs."""

from __future__ import annotations

from typing import Any

import torch

from outrider.heads.base import TargetWeights
from outrider.target.load import load_model


def read_target(model: str, **options: Any) -> TargetWeights:
    """The weights of a model that training needs, in float32."""
    loaded = load_model(model, dtype=torch.float32, device=torch.device("cpu"), **options)
    network: Any = loaded.model
    body = network.model
    scale = float(getattr(body.embed_tokens, "embed_scale", 1.0))
    return TargetWeights(
        embedding=body.embed_tokens.weight.detach() * scale,
        head=network.get_output_embeddings().weight.detach(),
        norm=body.norm.weight.detach(),
        block=body.layers[-1],
        config=loaded.config,
        eos_ids=loaded.tokenizer.eos_ids,
    )
