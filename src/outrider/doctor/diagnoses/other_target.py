"""A head that was trained for another model."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import LOW, Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, need

_NAME = "other_target"
_FITS = "is for a target with"  # as layouts of other projects say it


def _check(case: Case) -> Iterable[Finding]:
    head = case.head
    if head.head is None and _FITS in head.problem:
        evidence = [Evidence("reading the head", head.problem, source=str(head.folder))]
        yield finding(_NAME, "the head was made for a target of another shape", Certainty.CERTAIN, evidence, 0.9)
        return
    trained_for = need(head.head, f"a head that can be read ({head.problem})").config.target
    if trained_for != head.bound.fingerprint:
        evidence = [Evidence("trained for", trained_for, head.bound.fingerprint, f"{head.folder}/config.json")]
        fault = f"the head was trained for {trained_for}, and the target is {head.bound.fingerprint}"
        yield finding(_NAME, fault, Certainty.CERTAIN, evidence, 0.9)


DIAGNOSIS = Diagnosis(
    _NAME,
    "the head was trained for another target",
    "the target that the head's config names, and its shapes",
    "use the target that the head names, or train a head for this one (`outrider train eagle3 --target MODEL`)",
    _check,
    ("wrong_layers", "weights_not_loaded", *LOW),
)
