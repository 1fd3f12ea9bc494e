"""The folder that a run leaves: the answer to read and for programs, and what `outrider simulate` takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.advise import document, page
from outrider.advise.run import Advice
from outrider.errors import ConfigError


def write(folder: Path, value: Mapping[str, Any], advice: Advice) -> None:
    """Write ``advice.json``, ``advice.html``, ``costs.json`` and ``drafts.json``. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _dump(folder / "advice.json", value)
        _dump(folder / "costs.json", document.simulated_costs(advice))
        _dump(folder / "drafts.json", document.simulated_drafts(advice))
        (folder / "advice.html").write_text(page.render(value), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be written ({error.strerror}); name another place") from None


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
