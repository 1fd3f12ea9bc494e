"""What a structured output may be: the tokens that may follow an output so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Constraint(Protocol):
    """The language of one sequence's output. Every answer depends on the tokens alone, not on what was asked before,
    so that it can be looked at along any path of a draft."""

    def allowed(self, tokens: Sequence[int]) -> Tensor | None:
        """Bool [vocab] on the CPU, true where a token may follow ``tokens``; None when they have left the language.
        Raises NumericsError when the language is too hard to follow."""
        ...

    def accepts(self, tokens: Sequence[int]) -> bool:
        """Whether ``tokens`` begin a text of the language."""
        ...

    def forced(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens that spell the only text that can follow; other tokens may spell it too."""
        ...

    def complete(self, tokens: Sequence[int]) -> bool:
        """Whether ``tokens`` are a text of the language that nothing can be added to."""
        ...
