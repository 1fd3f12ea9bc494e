"""The draft heads that come with the package, for the model that it runs by default."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent / "shipped_heads"


def find(kind: str, target: str) -> Path | None:
    """The folder of the head of ``kind`` for the target with that fingerprint; None where none comes with us."""
    for path in sorted(FOLDER.glob("*/config.json")):
        own = json.loads(path.read_text(encoding="utf-8"))["outrider"]
        if (own["kind"], own["target"]) == (kind, target):
            return path.parent
    return None
