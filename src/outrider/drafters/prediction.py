"""Predicted outputs: follow the text that the user expects, and find the place again after a difference.

The interface is OpenAI's predicted outputs (platform.openai.com/docs/guides/predicted-outputs). The place in the
prediction is the token after the last one that the output agreed on. One differing token is first taken for a
replacement (the prediction goes on behind it). After any difference the last 2 to 8 output tokens are looked up in the
prediction; the longest match decides, of equal ones the nearest at or after the old place, then the nearest before it.
Until there is a match nothing is proposed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import DraftSequence
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.registry import DrafterContext

_MAX_MATCH = 8
_MIN_MATCH = 2
_MAX_CANDIDATES = 32  # on either side of the old place
_REPLACED = 0.35  # score of going on behind one replaced token


class Place(NamedTuple):
    """Where the output stands in the prediction.

    ``anchor``: the token of the prediction that follows the last agreed one; ``agreed``: how many tokens in a row have
    agreed; ``misses``: output tokens since then that did not.
    """

    anchor: int
    agreed: int
    misses: int


class PredictionState:
    """The place after every output token, so that truncation goes back to an earlier one."""

    def __init__(self, prediction: Sequence[int], num_prompt_tokens: int) -> None:
        self.prediction = list(prediction)
        self._num_prompt_tokens = num_prompt_tokens
        self._output: list[int] = []
        self._places = [Place(0, 0, 0)]
        self._pairs: dict[tuple[int, int], list[int]] = {}  # pair of tokens -> positions of its second token
        for position in range(1, len(self.prediction)):
            pair = (self.prediction[position - 1], self.prediction[position])
            self._pairs.setdefault(pair, []).append(position)

    @property
    def length(self) -> int:
        """Tokens of prompt and output."""
        return self._num_prompt_tokens + len(self._output)

    @property
    def place(self) -> Place:
        """The place after the last output token."""
        return self._places[-1]

    def extend(self, tokens: Sequence[int]) -> None:
        """Follow output tokens."""
        for token in tokens:
            self._output.append(token)
            self._places.append(self._follow(token) if self.prediction else self.place)

    def truncate(self, length: int) -> None:
        """Go back to the place at ``length`` tokens; a cut within the prompt moves the start of the output."""
        kept = max(0, length - self._num_prompt_tokens)
        self._num_prompt_tokens = min(self._num_prompt_tokens, length)
        del self._output[kept:]
        del self._places[kept + 1 :]

    def _follow(self, token: int) -> Place:
        anchor, agreed, misses = self.place
        here = anchor + misses
        if misses <= 1 and here < len(self.prediction) and self.prediction[here] == token:
            return Place(here + 1, 1 if misses else agreed + 1, 0)
        return self._search(anchor) or Place(anchor, agreed, misses + 1)

    def _search(self, anchor: int) -> Place | None:
        if len(self._output) < _MIN_MATCH:
            return None
        ends = self._pairs.get((self._output[-2], self._output[-1]), [])
        middle = bisect_left(ends, anchor - 1)
        near = ends[max(0, middle - _MAX_CANDIDATES) : middle + _MAX_CANDIDATES]
        if not near:
            return None
        _, _, _, end, size = max(
            (size, end + 1 >= anchor, -abs(end + 1 - anchor), end, size) for end in near for size in [self._match(end)]
        )
        return Place(end + 1, size - _MIN_MATCH, 0)

    def _match(self, end: int) -> int:
        limit = min(_MAX_MATCH, end + 1, len(self._output))
        size = _MIN_MATCH
        while size < limit and self.prediction[end - size] == self._output[-1 - size]:
            size += 1
        return size


class PredictionDrafter(LookupDrafter[PredictionState]):
    """Proposes what the prediction holds next; nothing for requests without one."""

    def __init__(self, eos_ids: frozenset[int], max_model_len: int) -> None:
        super().__init__("prediction", max_model_len)
        self._eos_ids = eos_ids

    def start(self, seq: DraftSequence) -> PredictionState:
        """The place after the output that the sequence holds already."""
        state = PredictionState(seq.prediction, seq.num_prompt_tokens)
        state.extend(seq.token_ids[seq.num_prompt_tokens :])
        return state

    def draft(self, seq: DraftSequence, state: PredictionState, budget: int) -> Draft:
        """A chain from the current place on, up to an end-of-sequence token, or nothing."""
        anchor, agreed, misses = state.place
        if misses > 1:
            return EMPTY
        first = anchor + misses
        chain = state.prediction[first : first + budget]
        stop = next((i for i, token in enumerate(chain) if token in self._eos_ids), budget)
        chain = chain[: stop + 1]
        scores = [_REPLACED if misses and not i else _score((0 if misses else agreed) + i) for i in range(len(chain))]
        return Draft(tokens=chain, scores=scores, source=self.method) if chain else EMPTY


def _score(agreed: int) -> float:
    """P(accepted) after ``agreed`` tokens in a row: 0.75 at once, towards 1 with every further one."""
    return 1 - 0.5 / (agreed + 2)


def build(config: SpeculativeConfig, context: DrafterContext) -> PredictionDrafter:
    """The drafter of method ``prediction``."""
    return PredictionDrafter(context.eos_ids, context.max_model_len)
