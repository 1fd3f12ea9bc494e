"""Our own layout; for EAGLE-3 that of SafeAILab, SpecForge and SGLang, with a section of our own in the config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from outrider.errors import ModelError
from outrider.heads.base import DraftHead
from outrider.heads.config import KINDS, config_class
from outrider.heads.kinds import make
from outrider.heads.layouts.base import Bound, Checkpoint, Layout, eight_bit, fill, from_eight_bit, is_eight_bit

ARCHITECTURES = {"eagle3": "LlamaForCausalLMEagle3", "eagle": "EagleLlamaForCausalLM", "medusa": "MedusaModel"}
_OWN = (
    *("kind", "hidden_layers", "target", "trained_length", "trained_steps", "draft_temperature"),
    *("canary", "canary_agreement"),
)


class OwnLayout(Layout):
    """What `outrider train` writes, in half precision, or with matrices of eight bits."""

    kinds = KINDS

    def __init__(self, name: str, store: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]) -> None:
        self.name, self._store = name, store

    def claims(self, checkpoint: Checkpoint) -> bool:
        """By the section, and by how its matrices are stored."""
        own = isinstance(checkpoint.facts.get("outrider"), dict)
        return own and is_eight_bit(checkpoint.tensors) == (self._store is eight_bit)

    def read(self, checkpoint: Checkpoint, target: Bound | None) -> DraftHead:
        """The config says everything."""
        own = checkpoint.facts["outrider"]
        if own.get("kind") not in KINDS:
            raise ModelError(f"{checkpoint.name}: no head is called {own.get('kind')!r}; this version has {KINDS}")
        kind = config_class(own["kind"])
        known = {key: value for key, value in checkpoint.facts.items() if key in kind.model_fields}
        return fill(make(kind(**known, **own)), from_eight_bit(checkpoint.tensors), checkpoint.name)

    def write(self, head: DraftHead, target: str) -> Checkpoint:
        """The config says everything, the canary included."""
        config = head.config
        facts: dict[str, Any] = config.model_dump(mode="json", exclude=set(_OWN)) | {
            "architectures": [ARCHITECTURES.get(config.kind, f"Outrider{config.kind.capitalize()}")],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "tie_word_embeddings": False,
            "outrider": {key: value for key, value in config.model_dump(mode="json").items() if key in _OWN},
        }
        if config.kind == "eagle3":
            layers = config.counted_layers
            facts["eagle_config"] = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": layers}
        return Checkpoint(target, facts, self._store(head.state_dict()))
