"""Acceptance estimates, calibrated online: a drafter's own score is a prior, what the target did is the evidence."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from outrider.core.draft import Draft
from outrider.drafters.estimates import everyone_in, label_of

_BUCKETS = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95)
_ANY = -1  # the bucket of a whole level, whatever the scores
_PRIOR = 4.0  # how many observations a score is worth
_SHARED = 12.0  # how many observations of the request's own outweigh those of all requests
_MEMORY = 400.0  # older observations fade beyond this many


class _Counts:
    """Exponentially faded trials and successes."""

    __slots__ = ("hits", "trials")

    def __init__(self) -> None:
        self.trials = 0.0
        self.hits = 0.0

    def add(self, hit: bool, memory: float) -> None:
        fade = 1.0 - 1.0 / memory if self.trials >= memory else 1.0
        self.trials = self.trials * fade + 1.0
        self.hits = self.hits * fade + hit


class Calibration:
    """P(node accepted | parent accepted) by (drafter, depth class, score bucket), per request and over all requests.

    The estimate of a request starts at that of all requests, which starts at the drafter's score. A node that several
    drafters proposed has a name of its own (``a+b``): that they agree is evidence, and how much is counted as it comes.
    Whatever the score, it counts for each of them.
    """

    def __init__(self) -> None:
        self._all: dict[tuple[str, int, int], _Counts] = defaultdict(_Counts)
        self._own: dict[tuple[int, str, int, int], _Counts] = defaultdict(_Counts)

    def estimate(self, seq_id: int, method: str, depth: int, score: float) -> float:
        """Calibrated conditional acceptance of a node at ``depth`` (1 = child of the root)."""
        key = (method, min(depth, 4), _bucket(score))
        shared, own = self._all.get(key), self._own.get((seq_id, *key))
        return _blend(_blend(score, _PRIOR, shared), _SHARED, own)

    def at_depth(self, seq_id: int, method: str, depth: int, prior: float) -> float:
        """Chance that some node at ``depth`` is accepted when its parent is: what is known before anything is
        drafted."""
        key = (method, min(depth, 4), _ANY)
        shared, own = self._all.get(key), self._own.get((seq_id, *key))
        return _blend(_blend(prior, _PRIOR, shared), _SHARED, own)

    def observe(self, seq_id: int, draft: Draft, emitted: Sequence[int]) -> None:
        """Learn from what the target emitted after the draft's root, also about nodes that were not verified.

        Right for rules that emit the target's own draw: a node is accepted iff its token is the one emitted there.
        """
        children = draft.children()
        node = -1
        for depth, token in enumerate(emitted, start=1):
            following = -1
            for child in children[node + 1]:
                hit = following < 0 and draft.tokens[child] == token
                self._add(seq_id, draft, child, depth, hit)
                if hit:
                    following = child
            self._add_level(seq_id, draft, children[node + 1], depth, following)
            if following < 0:
                return
            node = following

    def observe_path(self, seq_id: int, draft: Draft, path: Sequence[int]) -> None:
        """Learn from a classical rule: the nodes of ``path`` were accepted, the first child after it was not."""
        children = draft.children()
        node = -1
        for depth, accepted in enumerate((*path, -1), start=1):
            for child in children[node + 1]:
                self._add(seq_id, draft, child, depth, child == accepted)
            self._add_level(seq_id, draft, children[node + 1], depth, accepted)
            if accepted < 0:
                return
            node = accepted

    def release(self, seq_id: int) -> None:
        """Forget a request's own counts."""
        for key in [key for key in self._own if key[0] == seq_id]:
            del self._own[key]

    def _add(self, seq_id: int, draft: Draft, node: int, depth: int, hit: bool) -> None:
        score = 0.5 if draft.scores is None else draft.scores[node]
        self._count(seq_id, (label_of(draft, node), min(depth, 4), _bucket(score)), hit)

    def _add_level(self, seq_id: int, draft: Draft, level: Sequence[int], depth: int, accepted: int) -> None:
        """For every drafter that had a part in the level: was one of its nodes accepted?"""
        hits: dict[str, bool] = {}
        for node in level:
            for part in everyone_in(label_of(draft, node)):
                hits[part] = hits.get(part, False) or node == accepted
        for part, hit in hits.items():
            self._count(seq_id, (part, min(depth, 4), _ANY), hit)

    def _count(self, seq_id: int, key: tuple[str, int, int], hit: bool) -> None:
        self._all[key].add(hit, _MEMORY)
        self._own[(seq_id, *key)].add(hit, _MEMORY / 4)


def _bucket(score: float) -> int:
    return bisect_left(_BUCKETS, score)


def _blend(prior: float, weight: float, counts: _Counts | None) -> float:
    """``prior`` as ``weight`` observations, with the counted ones added."""
    return prior if counts is None else (weight * prior + counts.hits) / (weight + counts.trials)
