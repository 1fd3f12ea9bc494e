"""Tiny random models of many families, as a target and as the transformers model that they must agree with."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor

from outrider.cache.storage import KVStorage
from outrider.target import general
from outrider.target.batch import Span
from outrider.target.model import Target

VOCAB, BLOCK, WINDOW = 96, 16, 16
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_odd": ("Llama", {"head_dim": 12, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen2_window": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": SLIDING}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
            "query_pre_attn_scalar": 20,
        },
    ),
    "gemma3": ("Gemma3Text", {"head_dim": 16, "sliding_window": WINDOW, "layer_types": SLIDING}),
    "phi3": ("Phi3", {"sliding_window": 24, "rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
    "olmo2": ("Olmo2", {}),
    "qwen3_moe": ("Qwen3Moe", {"head_dim": 16, "norm_topk_prob": True, **EXPERTS}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
}
LEAN = ("llama", "llama_odd", "qwen2", "qwen2_window", "qwen3", "mistral", "phi3", "gemma2", "gemma3")
EXPERT_FAMILIES = ("qwen3_moe", "mixtral")


def reference(family: str, dtype: str = "float32", short_activations: bool = False, **changes: Any) -> Any:
    """The transformers model with weights that are random everywhere and rounded to ``dtype`` as a target rounds.

    ``short_activations``: what enters and leaves a linear layer is rounded to bfloat16, as torch's kernels do.
    """
    name, extra = FAMILIES.get(family, (family, {}))
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **extra, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn(parameter.shape)
        elif not name.endswith(".gate.weight"):  # routers stay float32
            parameter.data = parameter.data.to(DTYPES[dtype]).float()
    if short_activations:
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                _round_activations(module)
    return model.requires_grad_(False)


def _round_activations(linear: Any) -> None:
    if linear.bias is not None:
        linear.bias.data = linear.bias.data.bfloat16().float()
    linear.register_forward_pre_hook(lambda module, args: (args[0].bfloat16().float(),))
    linear.register_forward_hook(lambda module, args, output: output.bfloat16().float())


def loaded(model: Any) -> Any:
    """What the loader would give for ``model``."""
    general.register()
    own = copy.deepcopy(model)
    for module in own.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    own.set_attn_implementation("outrider")
    return SimpleNamespace(config=own.config, model=own, tokenizer=None, source=SimpleNamespace(name="tiny", file=None))


def target_of(model: Any, dtype: str = "float32", **options: Any) -> Target:
    """A target with the weights of ``model``."""
    return Target(loaded(model), dtype=dtype, **options)


def tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def scattered(count: int, pool: Tensor) -> tuple[Tensor, Tensor]:
    """Slots for ``count`` positions from the blocks that ``pool`` lists, and the blocks that are left."""
    blocks = -(-count // BLOCK)
    slots = pool[:blocks, None] * BLOCK + torch.arange(BLOCK)
    return slots.flatten().to(torch.int32).contiguous(), pool[blocks:]


def cache(target: Target, blocks: int = 40, seed: int = 0) -> tuple[KVStorage, Tensor]:
    """A storage, and its blocks in random order."""
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed))
    return target.new_storage(blocks * BLOCK, BLOCK), order


def row_logits(target: Target, spans: list[Span], storage: KVStorage) -> Tensor:
    """[rows, vocab] of one forward."""
    return target.forward(spans, storage).logits
