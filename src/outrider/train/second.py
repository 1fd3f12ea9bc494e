"""What becomes of a joint fit: a new target, a head that is bound to it, and how far it is from the original."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from outrider.engine.canary import agreement
from outrider.engine.heads import pack
from outrider.heads import files
from outrider.heads.base import DraftHead
from outrider.target.model import Target, load_target
from outrider.train.adapter import RANK
from outrider.train.answers import Sample
from outrider.train.card import report
from outrider.train.joint import JointFit
from outrider.train.listener import Listener
from outrider.train.quality import Quality, compare

_CANARY = 128  # tokens of the text that a load is checked on


class SecondStage:
    """The folder of a Medusa-2 run for the model ``original``: ``target``, ``head``, ``report.json``."""

    def __init__(self, original: str, folder: Path, listener: Listener) -> None:
        self._original, self.folder, self._listener = original, folder, listener

    @property
    def target(self) -> Path:
        """Where the new target is written."""
        return self.folder / "target"

    def finish(self, fit: JointFit, samples: Sequence[Sample]) -> None:
        """Write all that a fit gives; ``samples``: its texts, those that are held out first."""
        fit.adapter.write(self.target)
        new, head = load_target(str(self.target)), fit.head.cpu()
        head.config = head.config.model_copy(update={"target": new.fingerprint})
        record_canary(new, head, samples[0])
        files.save(head, self.folder / "head")
        held_out = samples[: fit.num_held_out]
        found = compare(load_target(self._original), new, held_out, fit.options.longest, self._progress)
        self._report(fit, new.fingerprint, found)

    def _report(self, fit: JointFit, fingerprint: str, found: Quality) -> None:
        facts = {
            "original": self._original,
            "target": fingerprint,
            "steps": fit.total,
            "weight": fit.weight,
            "rank": RANK,
            "quality": asdict(found),
        }
        report(self.folder, facts)
        self._listener.note(f"new target: {found.text()}")

    def _progress(self, done: int, total: int) -> None:
        self._listener.progress("quality", done, total)


def record_canary(target: Target, head: DraftHead, sample: Sample) -> None:
    """The text that later loads are compared on, and how the head does on it."""
    tokens = tuple(sample.token_ids[:_CANARY])
    found = {"canary": tokens, "canary_agreement": round(agreement(target, pack(target, head), tokens), 4)}
    head.config = head.config.model_copy(update=found)


def digest_of(head: DraftHead) -> str:
    """What tells one head's weights from another's."""
    digest = hashlib.sha256()
    for name, weight in sorted(head.state_dict().items()):
        digest.update(name.encode() + weight.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
