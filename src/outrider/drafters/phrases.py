"""Phrases: what may follow a token, kept by that token, latest first; and the branches of a draft made of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


class PhrasePool:
    """At most ``per_key`` phrases for a token, and at most ``max_keys`` tokens, the least recently fed of which goes.

    A phrase holds the tokens after its key and the name of what it came from.
    """

    def __init__(self, per_key: int, max_keys: int = 1 << 16) -> None:
        self._per_key, self._max_keys = per_key, max_keys
        self._phrases: OrderedDict[int, dict[tuple[int, ...], str]] = OrderedDict()  # latest last

    def __len__(self) -> int:
        return sum(map(len, self._phrases.values()))

    def add(self, key: int, phrase: Sequence[int], origin: str) -> None:
        """Put ``phrase`` after ``key`` at the front; one that is there already moves."""
        if not phrase or not self._per_key:
            return
        if key not in self._phrases:
            if len(self._phrases) >= self._max_keys:
                self._phrases.popitem(last=False)
            self._phrases[key] = {}
        self._phrases.move_to_end(key)
        kept = self._phrases[key]
        kept.pop(tuple(phrase), None)
        kept[tuple(phrase)] = origin
        if len(kept) > self._per_key:
            del kept[next(iter(kept))]

    def after(self, key: int) -> list[tuple[tuple[int, ...], str]]:
        """Phrases after ``key`` and their origins, latest first."""
        return list(reversed(self._phrases.get(key, {}).items()))


@dataclass(slots=True)
class Branches:
    """A trie of phrases, as nodes of a draft. ``ranks``: place of the first phrase through a node; ``counts``: how
    many phrases go through it; ``origins``: that of the first."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)


def merge(phrases: Sequence[tuple[Sequence[int], str]], budget: int) -> Branches:
    """The trie of ``phrases`` in their order, cut at ``budget`` nodes; -1 is the parent of first tokens."""
    out = Branches()
    found: dict[tuple[int, int], int] = {}
    for rank, (phrase, origin) in enumerate(phrases):
        node = -1
        for token in phrase:
            below = found.get((node, token))
            if below is None:
                if len(out.tokens) >= budget:
                    break
                below = found[node, token] = len(out.tokens)
                out.tokens.append(token)
                out.parents.append(node)
                out.ranks.append(rank)
                out.counts.append(0)
                out.origins.append(origin)
            out.counts[below] += 1
            node = below
    return out


def until(tokens: Sequence[int], ends: frozenset[int]) -> Sequence[int]:
    """``tokens`` up to the first one of ``ends``, which is kept."""
    for at, token in enumerate(tokens):
        if token in ends:
            return tokens[: at + 1]
    return tokens
