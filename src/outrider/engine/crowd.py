"""Drafting for many sequences at once: what it brings and takes is counted for all of them together."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from outrider.engine.sequence import Sequence
from outrider.engine.utility import Utility

CROWD = 4  # sequences from which on drafting may rest for all
_FOLLOWED = 64  # asks of a sequence that share what its drafter took to follow its prompt
_PATIENCE = 16  # steps without a draft that pays: in a crowd it is asked after 1, 2, 4, 8 of them, then every so many


class Crowd:
    """The sequences of a step as a whole. Those with a K that the user fixed are no part of it."""

    def __init__(self) -> None:
        self.size = 1  # sequences that the step decodes
        self._utility = Utility()
        self._asked: list[int] = []  # sequences that are asked in this step
        self._owed: dict[int, tuple[float, float]] = {}  # of what following a prompt took: what is not charged, an ask
        self._following = 0.0  # seconds that drafters took to follow prompts since the last step
        self._unearned = 0.0  # what sequences that have left still owed

    def begin(self, size: int) -> None:
        """A step over so many sequences begins."""
        self.size = max(1, size)
        self._asked.clear()

    def off(self, size: int | None = None) -> bool:
        """Whether drafting does not pay just now for so many, or for those of the step."""
        size = self.size if size is None else size
        return size >= CROWD and not self._utility.pays(size)

    def resting(self, waited: int) -> bool:
        """Whether a sequence none of whose drafts has paid for ``waited`` steps is left alone in this one."""
        return self.size >= CROWD and waited & (waited - 1) != 0 and waited % max(_PATIENCE, self.size) != 0

    def ask(self, seq: Sequence) -> None:
        """Its drafter may be asked in this step."""
        self._asked.append(seq.seq_id)

    def met(self, seq: Sequence, seconds: float) -> None:
        """Its drafter took so long to follow the prompt of ``seq``, which its drafts are to earn."""
        self._owed[seq.seq_id] = (seconds, seconds / _FOLLOWED)
        self._following += seconds

    def release(self, seq: Sequence) -> None:
        """A sequence has left. What it owes is lost, unless it was hardly asked and could not earn it."""
        owed, _ = self._owed.pop(seq.seq_id, (0.0, 0.0))
        if not self.off():
            self._unearned += owed

    def settle(
        self, seqs: Seq[Sequence], rows: int, tokens: int, drafting: float, whole: float, cost: Callable[[int], float]
    ) -> None:
        """A step of ``whole`` seconds that decoded ``seqs`` verified ``rows`` drafted rows, got ``tokens`` beyond one a
        sequence, and spent ``drafting`` seconds on asking. ``cost``: seconds of a step with so many rows."""
        count = len(seqs)
        if count < CROWD or any(seq.fixed_tokens is not None for seq in seqs):
            return
        plain = cost(count)
        asking = drafting + cost(count + rows) - plain
        taken, self._unearned = asking + self._unearned, 0.0
        for seq_id in self._asked:
            if seq_id in self._owed:
                owed, share = self._owed[seq_id]
                taken += min(owed, share)
                self._owed[seq_id] = (max(0.0, owed - share), share)
        self._utility.observe(count, plain, whole, tokens * plain / count, taken, asking + self._following)
        self._following = 0.0
