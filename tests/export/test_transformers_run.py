"""What is exported for transformers, run with tiny models: the text stays plain decoding's, and K is the one given."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from export.deployments import deployment
from outrider.export.registry import ENGINES

PROMPT = torch.tensor([[1, 5, 6, 7, 5, 6, 7, 5, 6]])


def tiny(layers: int) -> Any:
    torch.manual_seed(layers)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny(2)


@pytest.fixture(scope="module")
def plain(target: Any) -> torch.Tensor:
    return target.generate(PROMPT, max_length=40, do_sample=False)


def test_a_draft_model_drafts_k_tokens_a_step(
    target: Any, plain: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ENGINES["transformers"].export(deployment("draft_model", {"num_speculative_tokens": 3}))
    assistant, asked = tiny(1), []
    generate = assistant.generate

    def spy(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs["max_new_tokens"])
        return generate(*args, **kwargs)

    monkeypatch.setattr(assistant, "generate", spy)
    for key, value in json.loads(out.files["assistant_generation_config.json"]).items():
        setattr(assistant.generation_config, key, value)
    found = target.generate(PROMPT, max_length=40, assistant_model=assistant, **out.config)
    assert torch.equal(found, plain)
    assert asked[0] == max(asked) == 3


@pytest.mark.parametrize(("method", "settings"), [("ngram", {}), ("layer_skip", {"exit_layer": 1})])
def test_without_a_draft_model(target: Any, plain: torch.Tensor, method: str, settings: dict[str, Any]) -> None:
    out = ENGINES["transformers"].export(deployment(method, settings))
    for key, value in json.loads(out.files.get("assistant_generation_config.json", "{}")).items():
        setattr(target.generation_config, key, value)
    assert torch.equal(target.generate(PROMPT, max_length=40, **out.config), plain)
