"""What a diagnosis is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from outrider.doctor.case import Case
from outrider.doctor.finding import Certainty, Evidence, Finding


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One fault. ``summary``: what is wrong, in a few words; ``looks_at``: how it is seen; ``remedy``: what to do;
    ``explains``: other diagnoses that follow from it. ``check`` raises Lacking where it cannot look."""

    name: str
    summary: str
    looks_at: str
    remedy: str
    check: Callable[[Case], Iterable[Finding]]
    explains: tuple[str, ...] = ()


def finding(
    diagnosis: str, fault: str, certainty: Certainty, evidence: Iterable[Evidence], weight: float = 0.5
) -> Finding:
    """A finding; the table adds the remedy. ``weight`` is cut to 0..1."""
    return Finding(diagnosis, fault, "", certainty, tuple(evidence), min(1.0, max(0.0, weight)))


LOW = ("k_too_long", "low_acceptance", "load_too_high")  # what follows wherever few drafts are accepted
