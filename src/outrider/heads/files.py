"""A head's folder: ``config.json`` and ``model.safetensors``, for EAGLE-3 with the names of published checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from outrider.errors import ModelError
from outrider.heads.base import DraftHead
from outrider.heads.config import KINDS, HeadConfig, config_class
from outrider.heads.kinds import make

ARCHITECTURES = {"eagle3": "LlamaForCausalLMEagle3", "eagle": "EagleLlamaForCausalLM", "medusa": "MedusaModel"}
_OWN = ("kind", "hidden_layers", "target", "trained_length", "trained_steps", "canary", "canary_agreement")


def save(head: DraftHead, folder: Path) -> None:
    """Write ``head`` into ``folder``; half precision, except for the ids."""
    folder.mkdir(parents=True, exist_ok=True)
    config = head.config
    facts: dict[str, Any] = config.model_dump(exclude=set(_OWN)) | {
        "architectures": [ARCHITECTURES.get(config.kind, f"Outrider{config.kind.capitalize()}")],
        "outrider": {key: getattr(config, key) for key in _OWN},
    }
    if config.kind == "medusa":
        facts |= {"model_type": "medusa", "num_hidden_layers": facts["num_layers"], "medusa_fc_bias": True}
    else:
        facts |= {"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": False}
    if (
        config.kind == "eagle3"
    ):  # engines count the embedding as hidden state 0, so that theirs is "the input of layer i"
        layers = [layer + 1 for layer in config.hidden_layers]
        facts["eagle_config"] = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": layers}
    tensors = {
        name: (tensor.half() if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in head.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def read_config(folder: Path) -> HeadConfig:
    """The config of a head. Raises ModelError where ``folder`` holds none."""
    try:
        facts: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} holds no draft head: config.json cannot be read ({error})") from None
    own = facts.get("outrider")
    if not isinstance(own, dict) or own.get("kind") not in KINDS:
        raise ModelError(f"{folder} holds no draft head that `outrider train` wrote")
    kind = config_class(own["kind"])
    known = {key: value for key, value in facts.items() if key in kind.model_fields}
    return kind(**known, **own)


def load(folder: Path) -> DraftHead:
    """The head in float32. Raises ModelError for missing, surplus or misshapen tensors."""
    head = make(read_config(folder))
    try:
        tensors = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder}: model.safetensors cannot be read ({error})") from None
    mine = head.state_dict()
    if problems := [
        *(f"lacks {name}" for name in mine.keys() - tensors.keys()),
        *(f"has {name}, which no head has" for name in tensors.keys() - mine.keys()),
        *(
            f"{name} is {list(tensors[name].shape)}, not {list(mine[name].shape)}"
            for name in mine.keys() & tensors.keys()
            if mine[name].shape != tensors[name].shape
        ),
    ]:
        raise ModelError(f"{folder}: model.safetensors {'; '.join(sorted(problems))}")
    head.load_state_dict(tensors)
    return head
