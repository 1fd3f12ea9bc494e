"""What is known of a model before its weights are read: enough to refuse a method that cannot work with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from outrider.target.architecture import supports
from outrider.target.load import fingerprint_of, load_config, resolve
from outrider.target.model import Target, dtype_for


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``dtype``: the weight format, never `auto`. ``lean``: the flattened decoder serves it. ``fingerprint``: as in
    ``LoadedModel``."""

    name: str
    model_type: str
    num_layers: int
    lean: bool
    dtype: str
    fingerprint: str


def read_facts(
    model: str, *, dtype: str, device: str = "cpu", revision: str | None = None, trust_remote_code: bool = False
) -> ModelFacts:
    """The facts of a model by name, from its config alone. Raises what ``load_target`` raises."""
    weight_format = dtype_for(dtype, torch.device(device))
    source = resolve(model, revision=revision)
    config: Any = load_config(source, trust_remote_code=trust_remote_code)
    return _facts(source.name, config, supports(config), weight_format, fingerprint_of(source, config))


def facts_of(target: Target) -> ModelFacts:
    """The facts of a loaded target."""
    loaded = target.loaded
    return _facts(loaded.source.name, target.config, target.lean, target.dtype_name, loaded.fingerprint)


def _facts(name: str, config: Any, lean_path: bool, dtype: str, fingerprint: str) -> ModelFacts:
    return ModelFacts(name, str(config.model_type), int(config.num_hidden_layers), lean_path, dtype, fingerprint)
