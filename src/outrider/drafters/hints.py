"""Hints that outlive a request: one per cache salt, the least recently used of too many is forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Hint = TypeVar("Hint")


class PerSalt(Generic[Hint]):
    """At most ``limit`` hints, each made by ``new`` when its salt is first written."""

    def __init__(self, new: Callable[[], Hint], limit: int) -> None:
        self._new, self._limit = new, max(1, limit)
        self._hints: OrderedDict[str, Hint] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hints)

    def get(self, salt: str) -> Hint | None:
        """The hint of ``salt``, if there is one; changes nothing."""
        return self._hints.get(salt)

    def use(self, salt: str) -> Hint:
        """The hint of ``salt`` to be written."""
        if salt not in self._hints:
            while len(self._hints) >= self._limit:
                self._hints.popitem(last=False)
            self._hints[salt] = self._new()
        self._hints.move_to_end(salt)
        return self._hints[salt]

    def clear(self) -> None:
        """Forget everything."""
        self._hints.clear()
