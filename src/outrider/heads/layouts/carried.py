"""A multi-token-prediction module that a model's own checkpoint carries, behind its last layer (DeepSeek-V3's form).

| its name under `model.layers.{layers}.` | ours |
|---|---|
| `enorm`, `hnorm`, `eh_proj` | `enorm`, `hnorm`, `fc`: token first, then feature |
| `input_layernorm`, `self_attn.*`, `post_attention_layernorm`, `mlp.*` | `midlayer.*` |
| `shared_head.norm`, `shared_head.head` | `norm`, `lm_head`; without it the model's own |
| `embed_tokens` | the model's own, which it must equal |
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from outrider.errors import ConfigError, ModelError
from outrider.heads.base import DraftHead
from outrider.heads.config import config_for
from outrider.heads.kinds import make
from outrider.heads.layouts.base import Bound, Checkpoint, Layout, fill, needed
from outrider.target.load import MODULES

_NAMES = {"eh_proj": "fc", "shared_head.norm": "norm", "shared_head.head": "lm_head"}
_OUTSIDE = ("enorm", "hnorm", *_NAMES)
_FOREIGN = {"mlp.experts": "experts", "self_attn.kv_a_proj_with_mqa": "latent attention"}


class Carried(Layout):
    """Read alone: nothing writes into a model's checkpoint."""

    name, kinds = "carried", ()

    def claims(self, checkpoint: Checkpoint) -> bool:
        """By the model's config."""
        return bool(checkpoint.facts.get(MODULES))

    def read(self, checkpoint: Checkpoint, target: Bound | None) -> DraftHead:
        """See ``Layout``."""
        target = needed(target, checkpoint.name)
        if checkpoint.facts[MODULES] != 1:
            raise ModelError(
                f"{checkpoint.name} carries {checkpoint.facts[MODULES]} MTP modules; only one is supported"
            )
        prefix = f"model.layers.{target.num_layers}."
        own = {key.removeprefix(prefix): value for key, value in checkpoint.tensors.items() if key.startswith(prefix)}
        if not own:
            raise ModelError(f"{checkpoint.name} says {MODULES}=1 and has no tensor {prefix}*: the module was left out")
        for part, what in _FOREIGN.items():
            if any(key.startswith(part) for key in own):
                raise ModelError(
                    f"{checkpoint.name}: its MTP module has {what}; only Llama's kind of block is supported"
                )
        config = config_for(
            "mtp",
            SimpleNamespace(**checkpoint.facts),
            target.fingerprint,
            target.vocab_size,
            target.max_model_len,
        )
        head = make(config)
        maps = {name: value for name, value in head.state_dict().items() if name in ("d2t", "t2d")}
        return fill(head, _ours(own, checkpoint) | maps, checkpoint.name)

    def write(self, head: DraftHead, target: str) -> Checkpoint:
        """Not done. Raises ConfigError."""
        raise ConfigError("a module inside a model's checkpoint can be read, not written")


def _ours(own: Mapping[str, Tensor], checkpoint: Checkpoint) -> dict[str, Tensor]:
    """A module's tensors under our names. Raises ModelError where it has an embedding of its own."""
    embedding = checkpoint.tensors["model.embed_tokens.weight"]
    out = {"lm_head.weight": checkpoint.tensors.get("lm_head.weight", embedding).float()}
    for key, value in own.items():
        module, _, last = key.rpartition(".")
        if module == "embed_tokens":
            if not torch.equal(value, embedding):
                raise ModelError(
                    f"{checkpoint.name}: its MTP module has an embedding of its own, which is not supported"
                )
            continue
        name = _NAMES.get(module, module) if module in _OUTSIDE else f"midlayer.{module}"
        out[f"{name}.{last}"] = value.float()
    return out
