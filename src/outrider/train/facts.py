"""What a stage's files were made of, kept beside them, so that a run that goes on notices when it is another one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.paths import write_whole


def agree(path: Path, what: str, facts: Mapping[str, Any]) -> None:
    """Write ``facts`` to ``path``, or compare them with those that it holds. Raises ConfigError for a difference;
    ``what``: what it is of, in words."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for key, value in facts.items():
        if key in known and known[key] != value:
            raise ConfigError(
                f"{path.parent} holds {what} with {key}={known[key]!r}, not {value!r}; go on with the former, delete "
                f"{path.parent}, or take a new --out"
            )
    write_whole(path, json.dumps(known | dict(facts), indent=1) + "\n")
