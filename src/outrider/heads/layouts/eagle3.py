"""EAGLE-3 heads of others: SafeAILab, SpecForge, SGLang, vLLM and `speculators`.

| layout | config | tensors |
|---|---|---|
| SafeAILab, SpecForge, SGLang | flat, `LlamaForCausalLMEagle3` | `midlayer.*` |
| vLLM | flat, `Eagle3LlamaForCausalLM` | `layers.0.*` |
| speculators | the block's in `transformer_layer_config`, `Eagle3Speculator` | `layers.0.*` |

All count a target's hidden states from the embedding, so that their layer i is our layer i - 1; all hold offsets in
`d2t`. A head may carry a copy of the target's embedding, which is the target's own here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from outrider.errors import ModelError
from outrider.heads.base import DraftHead
from outrider.heads.config import RecurrentConfig, fused_layers
from outrider.heads.eagle3 import Eagle3
from outrider.heads.layouts.base import Bound, Checkpoint, Layout, check_map, fill, half, needed

_SHARED = ("embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight")  # the target's own
_REFUSED = {
    "norm_before_fc": "a norm before the fusion",
    "fc_norm": "norms of the single layers before the fusion",
    "attention_bias": "biases in the attention",
    "parallel_drafting": "drafting of all positions at once (P-EAGLE)",
}
_OTHER = ("layers.0.", "midlayer.")  # the block's prefix elsewhere, and here
_FLAT = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("rms_norm_eps", "vocab_size"),
)


class FlatEagle3(Layout):
    """SafeAILab, SpecForge, SGLang, and vLLM with its own names."""

    kinds = ("eagle3",)

    def __init__(self, name: str, architecture: str, block: str) -> None:
        self.name, self._architecture, self._block = name, architecture, block

    def claims(self, checkpoint: Checkpoint) -> bool:
        """By the architecture."""
        return self._architecture in (checkpoint.facts.get("architectures") or ())

    def read(self, checkpoint: Checkpoint, target: Bound | None) -> DraftHead:
        """See ``Layout``; the target gives its fingerprint, its context, and the layers where the file names none."""
        return _read(checkpoint, checkpoint.facts, checkpoint.facts, target)

    def write(self, head: DraftHead, target: str) -> Checkpoint:
        """Layer ids are written out; the embedding is not."""
        assert isinstance(head, Eagle3)
        layers = head.config.counted_layers
        facts = _block_facts(head.config) | {
            "architectures": [self._architecture],
            "model_type": "llama",
            "draft_vocab_size": head.config.draft_vocab_size,
            "norm_before_residual": head.config.norm_before_residual,
            "norm_output": head.config.norm_output,
            "target_hidden_size": head.config.hidden_size,
            "eagle_aux_hidden_state_layer_ids": layers,
            "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": layers},
        }
        return Checkpoint(target, facts, half(_renamed(head.state_dict(), "midlayer.", self._block)))


class Speculators(Layout):
    """The `speculators` package, whose checkpoints vLLM serves as they are."""

    name = "speculators"
    kinds = ("eagle3",)

    def claims(self, checkpoint: Checkpoint) -> bool:
        """By its own key."""
        return checkpoint.facts.get("speculators_model_type") == "eagle3"

    def read(self, checkpoint: Checkpoint, target: Bound | None) -> DraftHead:
        """See ``Layout``; the target gives its fingerprint, its context, and the layers where the file names none."""
        return _read(checkpoint, checkpoint.facts, checkpoint.facts["transformer_layer_config"], target)

    def write(self, head: DraftHead, target: str) -> Checkpoint:
        """Greedy proposals of as many tokens as the head was unrolled for."""
        assert isinstance(head, Eagle3)
        config = head.config
        facts = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": config.draft_vocab_size,
            "norm_before_residual": config.norm_before_residual,
            "norm_output": config.norm_output,
            "target_hidden_size": None,
            "eagle_aux_hidden_state_layer_ids": config.counted_layers,
            "transformer_layer_config": _block_facts(config) | {"model_type": "llama", "hidden_act": "silu"},
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.trained_steps or 3}],
                "verifier": {"name_or_path": target, "architectures": ["LlamaForCausalLM"]},
            },
        }
        return Checkpoint(target, facts, half(_renamed(head.state_dict(), "midlayer.", "layers.0.")))


def _block_facts(config: RecurrentConfig) -> dict[str, Any]:
    return {
        **{key: getattr(config, key) for key in _FLAT},
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }


def _renamed(tensors: Mapping[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    return {new + name[len(old) :] if name.startswith(old) else name: tensor for name, tensor in tensors.items()}


def _read(
    checkpoint: Checkpoint, facts: Mapping[str, Any], block: Mapping[str, Any], target: Bound | None
) -> DraftHead:
    name = checkpoint.name
    target = needed(target, name)
    for key, what in _REFUSED.items():
        if facts.get(key) or block.get(key):
            raise ModelError(f"{name} has {what} ({key}), which is not supported")
    if int(block.get("num_hidden_layers", 1)) != 1:
        raise ModelError(f"{name} has {block['num_hidden_layers']} layers; heads of one are supported")
    tensors = _renamed({key.removeprefix("model."): value for key, value in checkpoint.tensors.items()}, *_OTHER)
    tensors = {key: value for key, value in tensors.items() if key not in _SHARED}
    config = _config(name, facts, block, target, tensors)
    if "d2t" not in tensors and config.draft_vocab_size == config.vocab_size:
        tensors["d2t"] = torch.zeros(config.vocab_size, dtype=torch.long)
    if "d2t" in tensors:
        check_map(tensors["d2t"], tensors.get("t2d"), config.vocab_size, name)
        tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool)
        tensors["t2d"][tensors["d2t"].long() + torch.arange(len(tensors["d2t"]))] = True
    return fill(Eagle3(config), tensors, name)


def _config(
    name: str, facts: Mapping[str, Any], block: Mapping[str, Any], target: Bound, tensors: Mapping[str, Tensor]
) -> RecurrentConfig:
    missing = [key for key in _FLAT if key not in block]
    if missing:
        raise ModelError(f"{name}: config.json lacks {', '.join(missing)}")
    for key, theirs, ours in (
        ("hidden_size", facts.get("target_hidden_size") or block["hidden_size"], target.hidden_size),
        ("vocab_size", block["vocab_size"], target.vocab_size),
    ):
        if int(theirs) != ours:
            raise ModelError(f"{name} is for a target with {key} {theirs}, and this one has {ours}")
    known = facts.get("eagle_aux_hidden_state_layer_ids") or (facts.get("eagle_config") or {}).get(
        "eagle_aux_hidden_state_layer_ids"
    )
    layers = tuple(int(layer) - 1 for layer in known) if known else fused_layers(target.num_layers)
    if min(layers) < 0 or max(layers) >= target.num_layers:
        raise ModelError(f"{name} reads layers {list(layers)} of a target that has {target.num_layers}")
    heads, rows = int(block["num_attention_heads"]), tensors.get("lm_head.weight")
    rope = block.get("rope_parameters") or {}
    return RecurrentConfig(
        kind="eagle3",
        **{key: block[key] for key in _FLAT},
        draft_vocab_size=int(facts.get("draft_vocab_size") or (len(rows) if rows is not None else block["vocab_size"])),
        head_dim=int(block.get("head_dim") or block["hidden_size"] // heads),
        hidden_layers=layers,
        rope_theta=float(block.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        max_position_embeddings=target.max_model_len,
        norm_before_residual=bool(facts.get("norm_before_residual", False)),
        norm_output=bool(facts.get("norm_output", False)),
        target=target.fingerprint,
        trained_length=int(block.get("max_position_embeddings") or 0),
    )
