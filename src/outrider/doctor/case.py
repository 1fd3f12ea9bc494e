"""All that was handed in about one deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from outrider.doctor.figures import Figures
from outrider.doctor.finding import need
from outrider.doctor.records import Records
from outrider.doctor.settings import Settings

if TYPE_CHECKING:
    from outrider.doctor.models import DraftSide, HeadSide, Models

LACKS_METRICS = "metrics of a server (a URL, or a file)"
LACKS_RECORDS = "records of requests (--records)"
LACKS_DRAFT = "--target and --draft"
LACKS_HEAD = "--target and --head"


@dataclass(frozen=True, slots=True)
class Limits:
    """What findings are held against. ``position_cost``: what drafting and verifying one more token costs, as a share
    of a plain step, where the server does not time it; ``saturation_rows``: rows of a batch from which on a forward's
    time grows with each (on an H100 in bfloat16 about 300: 989 TFLOP/s over 3.35 TB/s, two FLOPs and two bytes a
    weight); ``min_drafts``: with fewer, a rate says nothing."""

    position_cost: float = 0.05
    saturation_rows: int = 256
    min_drafts: int = 100
    temperature: float | None = None  # that requests are sampled at
    reported: float | None = None  # an acceptance rate that a dashboard or a report shows
    max_model_len: int | None = None  # that the target is served with


@dataclass(frozen=True, slots=True)
class Case:
    """``figures``: of metrics, all methods together first; empty without a server."""

    figures: Sequence[Figures] = ()
    records: Records | None = None
    models: Models | None = None
    settings: Settings | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def metrics(self) -> Figures:
        """Those of all methods. Raises Lacking where there are none."""
        return need(self.figures[0] if self.figures else None, LACKS_METRICS)

    @property
    def drafting(self) -> list[Figures]:
        """Figures that may say how drafts are accepted: each method's where a server has several, and the records'. The
        method is that of the settings where the engine does not name it. Raises Lacking where there are none."""
        out = list(self.figures[1:] if len(self.figures) > 1 else self.figures)
        if self.records is not None:
            out.append(self.records.figures())
        if self.settings is not None and self.settings.method:
            out = [each if each.method else replace(each, method=self.settings.method) for each in out]
        return need(out or None, f"{LACKS_METRICS} or {LACKS_RECORDS}")

    @property
    def draft(self) -> DraftSide:
        """The draft model. Raises Lacking where there is none."""
        return need(self.models.draft if self.models else None, LACKS_DRAFT)

    @property
    def head(self) -> HeadSide:
        """The draft head. Raises Lacking where there is none."""
        return need(self.models.head if self.models else None, LACKS_HEAD)

    def enough(self, figures: Figures) -> Figures:
        """``figures`` of enough drafts. Raises Lacking where they are too few for a rate."""
        count = figures.num_drafts if figures.num_drafts is not None else figures.num_draft_tokens
        if count is not None and count < self.limits.min_drafts:
            need(None, f"at least {self.limits.min_drafts} drafts ({figures.source} has {count:.0f})")
        return figures
