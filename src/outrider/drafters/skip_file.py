"""The file of a tuned skip set: a small JSON document with the fingerprint of the model that it was tuned for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.paths import cache_dir

_FORMAT = "outrider skip set 1"


@dataclass(frozen=True, slots=True)
class SkipSet:
    """Layers that draft without their attention, and without their MLP."""

    attention: Sequence[int]
    mlp: Sequence[int]


def default_path(fingerprint: str) -> Path:
    """Where the set that was tuned for a model lies unless a file is named."""
    return cache_dir("skip") / f"{fingerprint}.json"


def write(path: Path, chosen: SkipSet, fingerprint: str, facts: dict[str, Any]) -> None:
    """Write a set; ``facts`` say how it was found. Raises ConfigError when the file cannot be written."""
    document = {
        "format": _FORMAT,
        "fingerprint": fingerprint,
        "skip_attention_layers": list(chosen.attention),
        "skip_mlp_layers": list(chosen.mlp),
        **facts,
    }
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error}): name another file") from None


def read(path: str, fingerprint: str) -> SkipSet:
    """The set of a file. Raises ConfigError when it is none, or was tuned for another model."""
    try:
        document = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        known, tuned_for = document["format"] == _FORMAT, document["fingerprint"]
        chosen = SkipSet(_layers(document["skip_attention_layers"]), _layers(document["skip_mlp_layers"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"skip_file={path!r} is no file of `outrider tune layer_skip` ({type(error).__name__}: {error}): name one"
        ) from None
    if not known:
        raise ConfigError(f"skip_file={path!r} has another format than {_FORMAT!r}: run `outrider tune layer_skip`")
    if tuned_for != fingerprint:
        raise ConfigError(
            f"skip_file={path!r} was tuned for another model: run `outrider tune layer_skip` for this one"
        )
    return chosen


def _layers(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(layer, int) for layer in value):
        raise TypeError("layers are a list of numbers")
    return value
