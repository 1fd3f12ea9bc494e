"""What `outrider advise` recommends, as a configuration: key "recommendation" of its JSON.

| key | meaning |
|---|---|
| `method` | a drafting method |
| `num_speculative_tokens` | K, or null where the schedule says it |
| `draft`, `head` | a draft model or a draft head, or null |
| `load_schedule` | rows [first batch, last batch, K], or null |
| `speculative_config` | all of the method's settings, where it is there |

Rows of `ranking` hold the same of each candidate as `deployment`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.config import SpeculativeConfig
from outrider.errors import ConfigError, why_unread
from outrider.export.schedule import LoadSchedule


def read_advice(
    path: Path, method: str | None = None, able: Mapping[str, Sequence[str]] | None = None
) -> tuple[SpeculativeConfig, LoadSchedule | None]:
    """Speculation and load schedule: of the recommendation, or of the best candidate with ``method``.

    ``able``: methods that an engine can do, and their settings. Raises ConfigError for a file that holds nothing of it,
    and where the engine cannot do what is recommended, with those of the ranking that it can.
    """
    try:
        whole: Any = json.loads(path.read_text(encoding="utf-8"))
        found, ranking = whole["recommendation"], _ranking(whole, able)
        recommended = found["method"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--advice {path} holds no recommendation ({why_unread(error)}): give the JSON that `outrider advise` wrote"
        ) from None
    if method is not None:
        if method not in ranking:
            raise ConfigError(f"--advice {path} ranks no {method!r} that can be exported; it has: {_named(ranking)}")
        return _deployed(path, ranking[method][0])
    if able is not None and recommended is not None and recommended not in able and ranking:
        raise ConfigError(
            f"--advice {path} recommends {recommended!r}, which this engine cannot do; of the ranking it can do "
            f"{_named(ranking)}: add --method NAME"
        )
    return _deployed(path, found)


def _ranking(whole: Mapping[str, Any], able: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[Any, float]]:
    """By method its best candidate, and its speed-up at the lowest load; trees only where the engine draws them."""
    out: dict[str, tuple[Any, float]] = {}
    for row in whole.get("ranking") or ():
        found = row.get("deployment") or {}
        method, given = found.get("method"), found.get("speculative_config") or {}
        if method is None or method in out or row.get("out"):
            continue
        if able is None or (method in able and ("tree_kind" not in given or "tree_kind" in able[method])):
            loads = row["by_concurrency"]
            out[method] = (found, loads[min(loads, key=int)]["speedup"])
    return out


def _named(ranking: Mapping[str, tuple[Any, float]]) -> str:
    return ", ".join(f"{name} ({speedup:.2f}x)" for name, (_, speedup) in ranking.items()) or "none"


def _deployed(path: Path, found: Mapping[str, Any]) -> tuple[SpeculativeConfig, LoadSchedule | None]:
    method = found["method"]
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
