"""What a second is worth: the tokens that steps have made per second of late, drafting and all.

The tokens of a whole answer per second are highest when every step takes what maximises its expected tokens less its
time at that price (the renewal-reward theorem with Dinkelbach's method, Management Science 13(7), 1967). A step's own
tokens per second, maximised step by step, end lower: after a good lookup a dear draft may still pay, and after none a
cheap row may not.

The price is never below plain decoding's, so a draft is kept only where its tokens over a plain step's, divided by its
time over a plain step's, are over 1. That ratio is the utility of Cascade, which switches speculation off on a mixture
of experts where it is below 1 (Saxena et al., arXiv 2506.20675). Cascade tries a K for some steps and measures; here it
follows for every draft from calibrated chances and the cost curve, in which the experts that more rows touch show.
"""

from __future__ import annotations

_MEMORY = 64.0  # plain steps' time behind which older steps fade
_PRIOR = 8.0  # plain steps that count as seen before the first one
_LONGEST = 16.0  # plain steps that one step can count for: a longer one was interrupted


class GoingRate:
    """Tokens per time, in units of plain decoding, which carry over between batches of other sizes."""

    def __init__(self) -> None:
        self._tokens = self._time = _PRIOR

    def observe(self, tokens: float, time: float) -> None:
        """A step that committed ``tokens`` for each of its sequences took ``time``, 1.0 being a plain step's."""
        time = min(time, _LONGEST)
        fade = 1.0 / (1.0 + time / _MEMORY) if self._time >= _MEMORY else 1.0
        self._tokens = self._tokens * fade + tokens
        self._time = self._time * fade + time

    @property
    def speed_up(self) -> float:
        """Over plain decoding. Never below 1: what is slower was a mistake, and no measure of a second's worth."""
        return max(1.0, self._tokens / self._time)
