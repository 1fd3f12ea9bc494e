"""Prompt lookup: copy what followed the last earlier occurrence of the context's last n tokens.

Source: prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding), with the last match instead of the
first. The longest n of ``prompt_lookup_max .. prompt_lookup_min`` that occurs earlier decides. When the copy reaches
the end of the text, it goes on into itself if the text has already repeated one whole period (the match, extended
backwards, is at least as long as the distance it was found at); otherwise it ends there. Nothing is copied past an
end-of-sequence token; the token itself may be proposed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import DraftSequence
from outrider.drafters.lookup import LookupDrafter, acceptance_prior
from outrider.drafters.registry import DrafterContext

_MAX_CONTEXT = 16  # how far a match is extended backwards for the score
_MAX_HITS = 6  # how many earlier occurrences vote on the score


class NgramIndex:
    """Tokens, and for every position and n the end of the previous occurrence of the n-gram that ends there.

    ``_previous[k][i]`` is the largest j < i whose last ``n_min + k`` tokens equal those at i, or -1. A query therefore
    reads one number, and removing a token restores the table of last occurrences.
    """

    def __init__(self, n_min: int, n_max: int) -> None:
        self.tokens: list[int] = []
        self._sizes = range(n_min, n_max + 1)
        self._last: list[dict[tuple[int, ...], int]] = [{} for _ in self._sizes]
        self._previous = [array("i") for _ in self._sizes]

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append ``tokens``; the cost is independent of the length of the text."""
        for token in tokens:
            end = len(self.tokens)
            self.tokens.append(token)
            for n, last, previous in zip(self._sizes, self._last, self._previous, strict=True):
                if n > end + 1:
                    previous.append(-1)
                    continue
                gram = tuple(self.tokens[-n:])
                previous.append(last.get(gram, -1))
                last[gram] = end

    def truncate(self, length: int) -> None:
        """Remove tokens from the end until ``length`` are left."""
        while len(self.tokens) > length:
            for n, last, previous in zip(self._sizes, self._last, self._previous, strict=True):
                before = previous.pop()
                if n > len(self.tokens):
                    continue
                gram = tuple(self.tokens[-n:])
                if before >= 0:
                    last[gram] = before
                else:
                    del last[gram]
            self.tokens.pop()

    def occurrences(self, limit: int) -> list[int]:
        """Ends of earlier occurrences of the longest n-gram that occurs earlier, last one first, at most ``limit``."""
        for previous in reversed(self._previous):
            end = previous[-1] if previous else -1
            if end < 0:
                continue
            found: list[int] = []
            while end >= 0 and len(found) < limit:
                found.append(end)
                end = previous[end]
            return found
        return []

    def shared_context(self, end: int, limit: int) -> int:
        """Number of tokens (at most ``limit``) on which the texts that end at ``end`` and at the last token agree."""
        tokens, last = self.tokens, len(self.tokens) - 1
        size = 0
        limit = min(limit, end + 1)
        while size < limit and tokens[end - size] == tokens[last - size]:
            size += 1
        return size


class NgramDrafter(LookupDrafter[NgramIndex]):
    """Prompt lookup over prompt and output of each sequence."""

    def __init__(self, n_min: int, n_max: int, eos_ids: frozenset[int], max_model_len: int) -> None:
        super().__init__("ngram", max_model_len)
        self._n_min, self._n_max = n_min, n_max
        self._eos_ids = eos_ids

    def start(self, seq: DraftSequence) -> NgramIndex:
        """An index of everything the sequence holds."""
        index = NgramIndex(self._n_min, self._n_max)
        index.extend(seq.token_ids)
        return index

    def draft(self, seq: DraftSequence, state: NgramIndex, budget: int) -> Draft:
        """A chain copied from the last match, or nothing."""
        ends = state.occurrences(_MAX_HITS)
        if not ends:
            return EMPTY
        period = state.length - 1 - ends[0]
        context = state.shared_context(ends[0], max(_MAX_CONTEXT, period if period < budget else 0))
        chain = _copy(state.tokens, ends[0], budget, context >= period, self._eos_ids)
        return Draft(tokens=chain, scores=_scores(state.tokens, ends, chain, context), source=self.method)


def _copy(tokens: list[int], end: int, count: int, periodic: bool, eos_ids: frozenset[int]) -> list[int]:
    chain = tokens[end + 1 : end + 1 + count]
    if periodic:
        while len(chain) < count:
            chain += chain[: count - len(chain)]
    stop = next((i for i, token in enumerate(chain) if token in eos_ids), count)
    return chain[: stop + 1]


def _scores(tokens: list[int], ends: list[int], chain: list[int], context: int) -> list[float]:
    """One score per chain token: the context grows with every token, and occurrences that disagree drop out."""
    voters = ends[1:]
    scores = []
    for depth, token in enumerate(chain, start=1):
        agreeing = [end for end in voters if tokens[end + depth] == token] if voters else voters
        scores.append(acceptance_prior(context + depth - 1, len(agreeing), len(voters)))
        voters = [end for end in agreeing if end + depth + 1 < len(tokens)]
    return scores


def build(config: SpeculativeConfig, context: DrafterContext) -> NgramDrafter:
    """The drafter of method ``ngram``."""
    return NgramDrafter(config.prompt_lookup_min, config.prompt_lookup_max, context.eos_ids, context.max_model_len)
