"""What a head starts from: the weights of its target's last block and head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.heads.eagle3 import Eagle3
from outrider.target.load import load_model


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """embedding [vocab, hidden], scaled as the model scales it; head [vocab, hidden]; norm [hidden]; ``block``: the
    last decoder layer; ``eos_ids``: tokens that end an answer."""

    embedding: Tensor
    head: Tensor
    norm: Tensor
    block: Any
    config: Any
    eos_ids: frozenset[int]


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


@torch.no_grad()
def initialise(head: Eagle3, target: TargetWeights, seed: int) -> None:
    """Start ``head`` as the target's last block over the feature, blind to the token, with the target's own head."""
    generator = torch.Generator().manual_seed(seed)
    hidden = head.config.hidden_size
    layer, block = head.midlayer, target.block
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = getattr(layer.self_attn, name).weight
        weight[:, :hidden] = 0.02 * torch.randn(weight[:, :hidden].shape, generator=generator)
        weight[:, hidden:] = getattr(block.self_attn, name).weight
    layer.self_attn.o_proj.weight.copy_(block.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(getattr(block.mlp, name).weight)
    layer.hidden_norm.weight.copy_(block.input_layernorm.weight)
    layer.post_attention_layernorm.weight.copy_(block.post_attention_layernorm.weight)
    layer.input_layernorm.weight.fill_(1.0)
    head.fc.weight.copy_(0.02 * torch.randn(head.fc.weight.shape, generator=generator))
    head.fc.weight[:, -hidden:] += torch.eye(hidden)  # the feature starts as the highest layer's
    head.norm.weight.copy_(target.norm)
    head.lm_head.weight.copy_(target.head[head.target_ids])
