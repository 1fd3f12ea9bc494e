"""Whether drafting pays in a batch of a size, with all that it takes: forwards, look-ups, prompts that drafters follow.

The utility of speculation is what its tokens save over what getting them takes. As in Cascade (arXiv 2506.20675) it is
tried for some steps, goes off where it is below 1, and is tried again after a while, which here is as long as makes
what trials lose a small share of all time. Each doubling of the batch has an account of its own, so that a crowd that
goes takes its verdict along; one that was not seen yet is thought to be no better than the next smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY = 8.0  # plain steps' time, spent on drafting, behind which older spending fades
_TRIAL = 16  # steps of a trial
_WAIT = 200  # plain steps until the first trial of a batch larger than one for which drafting does not pay
_LOSS = 0.005  # share of the time that trials may lose
_ON, _OFF = 1.1, 0.95  # utility over which drafting stays after a trial, and under which it goes


@dataclass(slots=True)
class _Account:
    """Seconds. ``purse``: what trials may lose; ``trial``: steps that are left of one."""

    saved: float = 0.0
    taken: float = 0.0
    pays: bool = True
    purse: float = 0.0
    trial: int = _TRIAL

    def add(self, saved: float, taken: float, spent: float, plain: float, whole: float) -> None:
        fade = max(0.0, 1.0 - taken / (_MEMORY * plain))
        self.saved, self.taken = self.saved * fade + saved, self.taken * fade + taken
        if self.pays and not self.trial:
            self.pays = self.saved >= _OFF * self.taken
            self.purse = 0.0 if self.pays else -_LOSS * plain
            return
        self.purse += _LOSS * whole - max(0.0, spent - saved)
        if self.trial:
            self.trial -= 1
            self.pays = self.trial > 0 or self.saved >= _ON * self.taken
        elif self.purse >= 0.0:
            self.trial, self.pays = _TRIAL, True


class Utility:
    """The accounts."""

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}

    def pays(self, num_sequences: int) -> bool:
        """Whether drafting for a batch of this size has saved more of late than it took, or is on trial."""
        account = self._nearest(num_sequences)
        return account is None or account.pays

    def observe(
        self, num_sequences: int, plain: float, whole: float, saved: float, taken: float, spent: float | None = None
    ) -> None:
        """A step of ``whole`` seconds, ``plain`` without drafts: these saved and took so much. ``spent``: what went
        into drafting meanwhile, where ``taken`` spreads some of it over the steps that it serves."""
        size = num_sequences.bit_length()
        if size not in self._accounts:
            off = not self.pays(num_sequences)
            self._accounts[size] = _Account(pays=False, trial=0, purse=-_LOSS * _WAIT * plain) if off else _Account()
        self._accounts[size].add(saved, taken, taken if spent is None else spent, plain, whole)

    def _nearest(self, num_sequences: int) -> _Account | None:
        sizes = [size for size in self._accounts if size <= num_sequences.bit_length()]
        return self._accounts[max(sizes)] if sizes else None
