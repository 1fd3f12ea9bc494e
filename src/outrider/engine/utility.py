"""Whether drafting pays in a batch of a size, with all that it takes: forwards, look-ups, prompts that drafters follow.

The utility of speculation is what its tokens save over what getting them takes (Cascade, arXiv 2506.20675, tests and
sets K by it). Below 1 it goes off but for what finding out costs: of all time, a small share. Each doubling of the
batch has an account of its own, so that a crowd that goes takes its verdict along.
"""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY = 6.0  # plain steps' time, spent on drafting, behind which older spending fades
_PRIOR = 2.0  # plain steps' time that counts as spent before anything was
_EXPLORING = 0.01  # share of the time that may be spent while drafting does not pay
_ON, _OFF = 1.1, 0.95  # utility over which drafting comes back, and under which it goes


@dataclass(slots=True)
class _Account:
    """Seconds. ``purse``: what may be spent on drafting that does not pay."""

    saved: float
    taken: float
    pays: bool = True
    purse: float = 0.0

    def add(self, saved: float, taken: float, plain: float, whole: float) -> None:
        fade = max(0.0, 1.0 - taken / (_MEMORY * plain))
        self.saved, self.taken = self.saved * fade + saved, self.taken * fade + taken
        self.pays = self.saved >= (_OFF if self.pays else _ON) * self.taken
        self.purse = min(plain, self.purse + _EXPLORING * whole - taken) if not self.pays else 0.0


class Utility:
    """The accounts. One of a size that was not seen yet starts with the verdict of the next smaller one."""

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}

    def pays(self, num_sequences: int) -> bool:
        """Whether drafting for a batch of this size has saved more of late than it took."""
        account = self._nearest(num_sequences)
        return account is None or account.pays

    def may_try(self, num_sequences: int) -> bool:
        """Whether time is left to find out if that has changed."""
        account = self._accounts.get(num_sequences.bit_length())
        return account is None or account.purse >= 0.0

    def observe(self, num_sequences: int, plain: float, whole: float, saved: float, taken: float) -> None:
        """A step of ``whole`` seconds, ``plain`` without drafts: these saved and took so much."""
        size = num_sequences.bit_length()
        if size not in self._accounts:
            before, prior = self._nearest(num_sequences), _PRIOR * plain
            rate = 1.0 if before is None else min(1.0, before.saved / before.taken)
            self._accounts[size] = _Account(rate * prior, prior, before is None or before.pays)
        self._accounts[size].add(saved, taken, plain, whole)

    def _nearest(self, num_sequences: int) -> _Account | None:
        sizes = [size for size in self._accounts if size <= num_sequences.bit_length()]
        return self._accounts[max(sizes)] if sizes else None
