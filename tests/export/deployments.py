"""Deployments of every method, for tests and for `tools/engine_check.py`."""

from __future__ import annotations

from typing import Any

from outrider.config import SpeculativeConfig
from outrider.drafters.registry import REGISTRY
from outrider.export.deployment import Deployment
from outrider.export.schedule import LoadSchedule

TARGET, DRAFT, HEAD = "org/target", "org/draft", "org/head"
SCHEDULE = LoadSchedule.of([[1, 8, 5], [9, 32, 2], [33, 256, 0]])
_NEEDED: dict[str, Any] = {
    "model": DRAFT,
    "models": [DRAFT, "org/other"],
    "datastore": "store",
    "synthetic_acceptance_rates": [0.8, 0.5],
    "drafters": [{"method": "ngram"}, {"method": "suffix"}],
    "drafter": {"method": "ngram"},
}


def speculation(method: str, **settings: Any) -> SpeculativeConfig:
    """A config with what the method cannot do without."""
    row = REGISTRY[method]
    needed = {key: _NEEDED[key] for key in row.required}
    if row.needs_head and method != "mtp":
        needed["model"] = HEAD
    return SpeculativeConfig(**{"method": method, **needed, **settings})


def deployment(method: str, speculative: dict[str, Any] | None = None, **settings: Any) -> Deployment:
    """A deployment of a method."""
    return Deployment(target=TARGET, speculation=speculation(method, **(speculative or {})), **settings)
