"""Where Outrider keeps what it fetches, converts and measures."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir(*parts: str) -> Path:
    """The folder ``parts`` inside the cache (``OUTRIDER_CACHE``, else ``~/.cache/outrider``), made when missing."""
    root = os.environ.get("OUTRIDER_CACHE")
    folder = Path(root).expanduser() if root else Path.home() / ".cache" / "outrider"
    folder = folder.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
