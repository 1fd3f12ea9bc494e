"""What a diagnosis says: a fault with its evidence, or what it would have needed to look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

T = TypeVar("T")


class Certainty(IntEnum):
    """How sure a finding is. ``CERTAIN``: read off files, settings or counters, nothing else explains it; ``LIKELY``:
    measured, and this is what usually causes it; ``POSSIBLE``: a symptom that has several causes."""

    POSSIBLE = 1
    LIKELY = 2
    CERTAIN = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """``what`` was seen, as ``value``. ``limit``: what it is held against; ``source``: metric, file or setting."""

    what: str
    value: str
    limit: str = ""
    source: str = ""

    def line(self) -> str:
        """The same in one line."""
        limit = f" ({self.limit})" if self.limit else ""
        source = f" [{self.source}]" if self.source else ""
        return f"{self.what}: {self.value}{limit}{source}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault. ``weight``: how far beyond the limit, from 0 to 1, which orders findings of one certainty.
    ``follows_from``: the diagnosis of another finding that explains this one; empty where none does."""

    diagnosis: str
    fault: str
    remedy: str
    certainty: Certainty
    evidence: tuple[Evidence, ...]
    weight: float = 0.5
    follows_from: str = ""


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A diagnosis that could not look, and what it lacked."""

    diagnosis: str
    lacks: str


class Lacking(Exception):
    """A diagnosis lacks something; its text says what."""


def need(value: T | None, what: str) -> T:
    """``value``. Raises Lacking where there is none."""
    if value is None:
        raise Lacking(what)
    return value


@dataclass(frozen=True, slots=True)
class Report:
    """``findings``: the likeliest first. ``seen``: the figures that were read. ``notes``: what limits the answer."""

    findings: Sequence[Finding]
    unchecked: Sequence[Unchecked]
    checked: Sequence[str]
    seen: Sequence[Evidence]
    notes: Sequence[str]

    @property
    def healthy(self) -> bool:
        """Whether no fault was found."""
        return not self.findings


def percent(value: float) -> str:
    """A share as text: 0.1234 -> 12.3 %."""
    return f"{100 * value:.1f} %"
