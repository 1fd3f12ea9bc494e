"""The table of verification rules, and the one place that makes a rule from its name and options."""

from __future__ import annotations

from outrider.core.verifiers.base import Verifier
from outrider.core.verifiers.block import Block
from outrider.core.verifiers.kseq import KSeq
from outrider.core.verifiers.lossy import Threshold, Typical
from outrider.core.verifiers.rejection import Rejection
from outrider.core.verifiers.sample import Sample
from outrider.core.verifiers.traversal import Traversal
from outrider.errors import ConfigError

VERIFIERS: dict[str, type[Verifier]] = {
    kind.name: kind for kind in (Sample, Rejection, Block, Traversal, KSeq, Typical, Threshold)
}


def make_verifier(name: str, *, typical_threshold: float = 0.09, typical_alpha: float = 0.3) -> Verifier:
    """The rule called ``name``; the options belong to the lossy rules. Raises ConfigError for an unknown name."""
    if name not in VERIFIERS:
        raise ConfigError(f"verifier {name!r} is unknown; choose one of: {', '.join(VERIFIERS)}")
    if name == Typical.name:
        return Typical(typical_threshold, typical_alpha)
    if name == Threshold.name:
        return Threshold(typical_threshold)
    return VERIFIERS[name]()
