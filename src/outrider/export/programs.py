"""Programs for the engines that are libraries, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def lines(*parts: str | Sequence[str]) -> str:
    """Lines of a program; empty strings are empty lines, None is not taken."""
    out: list[str] = []
    for part in parts:
        out.extend([part] if isinstance(part, str) else part)
    return "\n".join(out) + "\n"


def arguments(values: dict[str, Any]) -> str:
    """Keyword arguments of a call."""
    return ", ".join(f"{key}={value!r}" for key, value in values.items())
