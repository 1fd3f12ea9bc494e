"""The target as drafters see it: its weights, narrower copies of them, and its cache behind the committed length."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import cast

from torch import Tensor

from outrider.drafters.base import DraftSequence
from outrider.engine.scheduler import Scheduler
from outrider.engine.sequence import Sequence
from outrider.errors import ContractError, NumericsError
from outrider.target.batch import Span
from outrider.target.model import Target


class EngineTarget:
    """Implements ``TargetHandle``. ``copies``: narrower copies of the target by ``draft_dtype``."""

    def __init__(self, model: Target, scheduler: Scheduler, copies: Mapping[str, Target]) -> None:
        self.model = model
        self._scheduler, self._copies = scheduler, copies

    def narrow(self, draft_dtype: str) -> Target:
        """See ``TargetHandle``."""
        return self._copies[draft_dtype]

    def slots(self, seq: DraftSequence, num_rows: int) -> Tensor:
        """Slots of the positions of ``seq``; those of ``num_rows`` rows from the root on are reserved where there is
        room. Raises ContractError for a sequence whose next row is not its root."""
        own = cast(Sequence, seq)
        if own.table is None or own.num_uncomputed != 1:
            raise ContractError(f"sequence {seq.seq_id} is not decoding: the target's cache has no room for its drafts")
        self._scheduler.room(own, num_rows - 1)
        return own.table.slots_tensor()

    def forward(self, spans: Seq[Span], model: Target, skip: bytes | None = None) -> Tensor:
        """See ``TargetHandle``."""
        storage = self._scheduler.storage
        try:
            return model.forward(spans, storage, skip=skip).logits
        except NumericsError:
            for span in spans:  # a slot that is never computed again must not hold NaN
                rows = span.context[span.start : span.start + len(span.tokens)] if span.slots is None else span.slots
                storage.write(slice(None), rows, 0, 0)
            raise
