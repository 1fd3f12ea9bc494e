"""Whether a drafter is to meet a sequence at all: following a text takes time, which the drafts behind it must earn.

    meet  <=>  seconds a token of following * tokens so far  <=  seconds earned a token of late * tokens left

What is left is not known: answers end before their limit, so that a share of what the limit leaves is counted on.
Where following takes next to nothing of the time that is left, as for look-ups, the drafter meets everyone and goes on
learning. It meets everyone too where few are decoded at a time: there drafts earn most, and what a drafter that joins
several follows for one of them would be lost to all of them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from outrider.engine.crowd import CROWD
from outrider.engine.sequence import Sequence

_COUNTED = 0.5  # share of the tokens that the limit leaves
_NEW = 0.3  # weight of the latest meeting in the mean
_STEP = 0.02  # and of the latest step, once there were as many as make it the plain mean
_LITTLE = 0.005  # of the time that is left may be lost
_AGAIN = 16  # one in so many sequences is met all the same: times change


class Meetings:
    """Means by method; what was earned also by batch size, each doubling apart. What is not known yet is tried."""

    def __init__(self) -> None:
        self._token: dict[str, float] = {}  # seconds of following a token
        self._earned: dict[tuple[str, int], tuple[float, int]] = {}  # seconds a committed token, and of how many steps
        self._refused: dict[int, bool] = {}  # by sequence, once it was asked for
        self._num_refused = 0

    def refuses(self, seq: Sequence, num_sequences: int, step: float) -> bool:
        """Whether the drafter of ``seq``, one of so many whose plain steps take ``step`` seconds, had better never meet
        it. The answer stays."""
        if num_sequences < CROWD:
            return False
        if seq.seq_id not in self._refused:
            self._refused[seq.seq_id] = self._decide(seq, num_sequences, step)
        return self._refused[seq.seq_id]

    def _decide(self, seq: Sequence, num_sequences: int, step: float) -> bool:
        token = self._token.get(seq.method)
        earned, steps = self._earned.get((seq.method, num_sequences.bit_length()), (0.0, 0))
        if token is None or steps * _STEP < 1.0 or seq.params.max_tokens is None:
            return False
        left = _COUNTED * (seq.params.max_tokens - len(seq.output_ids))
        if token * len(seq.token_ids) <= max(earned, _LITTLE * step) * left:
            return False
        self._num_refused += 1
        return self._num_refused % _AGAIN != 0

    def met(self, seq: Sequence, seconds: float) -> None:
        """Following all of ``seq`` took so long."""
        took = seconds / len(seq.token_ids)
        known = self._token.setdefault(seq.method, took)
        self._token[seq.method] = known + _NEW * (took - known)

    def settle(self, seqs: Seq[Sequence], tokens: int, earned: float) -> None:
        """A step that decoded ``seqs``, whose drafters have met them, committed ``tokens`` and earned so much."""
        if len({seq.method for seq in seqs}) != 1:
            return
        key = seqs[0].method, len(seqs).bit_length()
        known, steps = self._earned.get(key, (0.0, 0))
        self._earned[key] = known + max(_STEP, 1.0 / (steps + 1)) * (earned / tokens - known), steps + 1

    def release(self, seq: Sequence) -> None:
        """A sequence has left."""
        self._refused.pop(seq.seq_id, None)
