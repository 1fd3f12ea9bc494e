"""Tiny checkpoints on disk, and a cache of a test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from outrider.target.load import ModelSource, load_network, resolve

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "gemma3_text": ("Gemma3Text", {"head_dim": 8, "sliding_window": 16}),
    "phi3": ("Phi3", {}),
    "olmo2": ("Olmo2", {}),
    "qwen3_moe": ("Qwen3Moe", {"head_dim": 8, **EXPERTS}),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
}


@pytest.fixture
def own_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real_model" not in request.keywords:
        monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))


def tiny(family: str = "llama", **changes: Any) -> Any:
    name, extra = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **extra, **changes})
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config)


def saved(folder: Path, family: str = "llama", **changes: Any) -> ModelSource:
    tiny(family, **changes).save_pretrained(folder)
    return resolve(str(folder))


def network(source: ModelSource, **options: Any) -> Any:
    return load_network(source, attn_implementation="sdpa", **options)
