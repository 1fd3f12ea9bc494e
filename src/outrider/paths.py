"""Where Outrider keeps what it fetches, converts and measures, and files that are written whole or not at all."""

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


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` to ``path``; a stop at any moment leaves the old file or the new one."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
