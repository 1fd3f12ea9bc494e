"""What `outrider advise` recommends, as a configuration: key "recommendation" of its JSON.

| key | meaning |
|---|---|
| `method` | a drafting method |
| `num_speculative_tokens` | K, or null where the schedule says it |
| `draft`, `head` | a draft model or a draft head, or null |
| `load_schedule` | rows [first batch, last batch, K], or null |
| `speculative_config` | all of the method's settings, where it is there |
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outrider.config import SpeculativeConfig
from outrider.errors import ConfigError, why_unread
from outrider.export.schedule import LoadSchedule


def read_advice(path: Path) -> tuple[SpeculativeConfig, LoadSchedule | None]:
    """Speculation and load schedule. Raises ConfigError for a file that holds no recommendation."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))["recommendation"]
        method = found["method"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--advice {path} holds no recommendation ({why_unread(error)}): give the JSON that `outrider advise` wrote"
        ) from None
    if method is None:
        raise ConfigError(f"--advice {path} recommends to serve without speculation: there is nothing to export")
    values: dict[str, Any] = dict(found.get("speculative_config") or {}) | {"method": method}
    values["num_speculative_tokens"] = found.get("num_speculative_tokens")
    model = found.get("head") or found.get("draft")
    if model is not None:
        values["model"] = model
    rows = found.get("load_schedule")
    schedule = LoadSchedule.of(rows) if rows else None
    if schedule is not None and schedule.most == 0:
        raise ConfigError(f"--advice {path} recommends no draft tokens at any load: there is nothing to export")
    if schedule is not None and (values["num_speculative_tokens"] or 0) < schedule.most:
        values["num_speculative_tokens"] = schedule.most  # a K for one load, and the schedule for all of them
    if schedule is not None and len(schedule.levels) == 1:
        schedule = None  # one K at any load
    return SpeculativeConfig(**values), schedule
