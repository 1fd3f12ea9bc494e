"""Outrider: lossless speculative decoding. A drafter guesses, the target checks, the text stays the target's own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.config import SamplingParams, SpeculationParams, SpeculativeConfig
    from outrider.llm import LLM

__version__ = "0.1.0"

_EXPORTS = {
    "LLM": "outrider.llm",
    "SamplingParams": "outrider.config",
    "SpeculationParams": "outrider.config",
    "SpeculativeConfig": "outrider.config",
}

__all__ = ["LLM", "SamplingParams", "SpeculationParams", "SpeculativeConfig", "__version__"]


def __getattr__(name: str) -> Any:
    """Import torch and transformers only when something of theirs is asked for: the command's help stays instant."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(_EXPORTS[name]), name)
