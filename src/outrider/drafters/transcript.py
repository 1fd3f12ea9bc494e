"""A sequence of the target's tokens as the tokens of a draft model with another vocabulary, kept up as it grows.

The text is cut into stretches where a tokenizer would cut it anyway (before the space that begins a word), and a
stretch is encoded as the draft's own tokenizer does it. Only the last, open stretch is encoded again when tokens come,
so that the transcript is a function of the target's tokens alone, however they arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.target.spelling import CONTINUATION
from outrider.target.token_map import TokenMap

_STRETCH = 16  # target tokens from which on a stretch ends before the next word
_LONGEST = 64  # and before the next whole character, where no word begins


class Transcript:
    """``ids``: the draft's tokens for the target tokens that ``follow`` was given last."""

    def __init__(self, token_map: TokenMap) -> None:
        self.ids: list[int] = []
        self._map = token_map
        self._stretches: list[tuple[int, int]] = []  # beginnings, in target tokens and in ``ids``

    def follow(self, token_ids: Sequence[int], known: int) -> int:
        """Take in ``token_ids``, of which the first ``known`` are those of last time.

        Returns how many of ``ids`` are what they were.
        """
        start, length = 0, 0
        while self._stretches:
            start, length = self._stretches.pop()
            if start < known:
                break
        before = self.ids[length:]
        del self.ids[length:]
        while start < len(token_ids):
            end = self._end(token_ids, start)
            self._stretches.append((start, len(self.ids)))
            self.ids += self._transcribed(token_ids, start, end)
            start = end
        for mine, theirs in zip(before, self.ids[length:], strict=False):
            if mine != theirs:
                break
            length += 1
        return length

    def _end(self, token_ids: Sequence[int], start: int) -> int:
        """Where the stretch ends that begins at ``start``; a token without text is one of its own."""
        spelled = self._map.target.bytes_of
        if not spelled[token_ids[start]]:
            return start + 1
        for at in range(start + 1, len(token_ids)):
            text = spelled[token_ids[at]]
            if not text:
                return at
            if at - start >= _STRETCH and _begins_word(text, spelled[token_ids[at - 1]]):
                return at
            if at - start >= _LONGEST and text[0] not in CONTINUATION:
                return at
        return len(token_ids)

    def _transcribed(self, token_ids: Sequence[int], start: int, end: int) -> list[int]:
        """The draft's tokens for one stretch. The beginning of the text gets what the draft's tokenizer puts there."""
        ours, theirs = self._map.target, self._map.draft
        text = b"".join(ours.bytes_of[token] for token in token_ids[start:end])
        first = token_ids[0]
        if text and (start == 0 or (start == 1 and not ours.bytes_of[first])):
            text = text[ours.leading_space and text[:1] == b" " :]
            text = b" " * theirs.leading_space + text
        alike = self._map.alike
        ids = theirs.encode(text) if text else [alike[token] for token in token_ids[start:end] if token in alike]
        if start > 0 or not theirs.prefix:
            return ids
        begins = not text and (first == ours.tokenizer.bos_id or ids == theirs.prefix)
        return theirs.prefix if begins else theirs.prefix + ids


def _begins_word(text: bytes, before: bytes) -> bool:
    """A space and more stand behind what is no space."""
    return text[:1] == b" " and not text.isspace() and not before[-1:].isspace()
