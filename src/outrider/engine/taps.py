"""Hidden states on their way from the target to drafters, and into the cache behind what is committed."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from outrider.cache.storage import KVStorage
from outrider.engine.sequence import Sequence
from outrider.target.model import TargetOutput


class Taps:
    """``puts_off``: whether a sequence's drafter is to meet it later, if ever: then its hidden states go into the cache
    alone, where that has room for them."""

    def __init__(self, storage: KVStorage, puts_off: Callable[[Sequence], bool]) -> None:
        self._storage, self._puts_off = storage, puts_off
        self._waiting: list[tuple[Seq[int], Tensor]] = []  # of this step's commits: slots, and what goes there
        self._stored = False  # the rows of the latest forward are in the cache

    def store(self, seqs: Seq[Sequence], output: TargetOutput, layers: Seq[int]) -> None:
        """Put all rows of a forward over ``seqs`` into the cache, each beside its key and value, where that is one
        write: where nobody reads other layers than ``layers``."""
        fits = output.hidden is not None and output.slots is not None and len(layers) <= self._storage.num_tapped
        self._stored = fits and all(seq.hidden_layers in ((), tuple(layers)) for seq in seqs)
        if self._stored:
            assert output.hidden is not None
            assert output.slots is not None
            self._storage.write_taps(output.slots, output.hidden)

    def keep(self, seq: Sequence, hidden: Tensor | None, rows: Seq[int]) -> None:
        """``rows`` (ascending) of ``hidden`` [rows, layers * hidden] are about to be committed."""
        if hidden is None:
            return
        cached = len(seq.hidden_layers) <= self._storage.num_tapped
        meets = seq.begun or not cached or not self._puts_off(seq)
        if self._stored and not meets:
            return
        if rows[-1] == len(rows) - 1:  # the first ones, as in every step without a draft
            taps = hidden[: len(rows)]
        else:
            taps = hidden[torch.tensor(list(rows), device=hidden.device)]
        assert seq.table is not None
        if meets:
            seq.hidden.append(taps.clone())
        if not self._stored:
            self._waiting.append((seq.table.slots(seq.table.length, len(taps)), taps))

    def write(self) -> None:
        """What was kept one by one: others read it when they are admitted, which is after this step."""
        for width in {taps.shape[1] for _, taps in self._waiting}:
            kept = [(slots, taps) for slots, taps in self._waiting if taps.shape[1] == width]
            slots = [slot for own, _ in kept for slot in own]
            self._storage.write_taps(slots, torch.cat([taps for _, taps in kept]))
        self._waiting.clear()

    def unseen(self, seq: Sequence) -> Tensor | None:
        """Those that the drafter has not seen [rows, layers * hidden]: all, where it is about to meet the sequence."""
        kept = None if not seq.hidden else seq.hidden[0] if len(seq.hidden) == 1 else torch.cat(seq.hidden)
        seq.hidden.clear()
        if not seq.hidden_layers or seq.begun or seq.table is None:
            return kept
        if kept is not None and len(kept) == seq.table.length:
            return kept
        self.write()
        return self._storage.read_taps(seq.table.slots(0, seq.table.length), len(seq.hidden_layers))
