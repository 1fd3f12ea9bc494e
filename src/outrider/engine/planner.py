"""The planner: one law decides how much to speculate.

Over the whole batch it asks for and keeps what maximises (expected tokens) - rate * (draft time + t(rows)), with t the
measured cost curve of the target, calibrated acceptance per node, and the rate at which tokens have come of late.
Keeping none is a normal answer. A K that the user fixed is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import cache
from itertools import accumulate

from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Drafter
from outrider.drafters.estimates import MARGIN, open_ended, path_chances, plain, worth_asking
from outrider.engine.calibration import Calibration
from outrider.engine.crowd import Crowd
from outrider.engine.going_rate import GoingRate
from outrider.engine.meetings import Meetings
from outrider.engine.sequence import Sequence
from outrider.target.costs import CostCurve
from outrider.target.pace import Pace

_EXPLORE = 24  # every so many steps a model drafter that does not pay is tried again, for one of the batch's sequences
_OVERHEAD = 0.0004  # seconds of a step that neither forward accounts for
_LEAST = 1e-9  # a floor of 0 says that the user fixed K
_UNSURE = 0.02  # share of a step's tokens that may be left for rows that are not sure to pay
_SURE = 1.25  # a node's own tokens per second, over the rate: estimates err, and a row that just pays gains nothing


class Planner:
    """Budgets before drafting, selection of nodes after it; the ``Estimates`` of drafters that are made of drafters."""

    def __init__(self, curve: CostCurve) -> None:
        self.curve = curve
        self._pace = Pace()
        self._expected: Callable[[int], float] = curve  # of the sequences at hand, as stored
        self._seconds: Callable[[int], float] = curve  # as the machine is now
        self.calibration = Calibration()
        self._waited: dict[int, int] = {}
        self._idle: dict[int, int] = {}  # steps since a draft of the sequence paid
        self.crowd = Crowd()
        self._meetings = Meetings()
        self._others = 0  # sequences of the step that nobody drafts for just now
        self.watchers: list[Callable[[Draft, Seq[int]], None]] = []  # called with a draft and what the target emitted
        self._rate = GoingRate()

    def prepare(self, seqs: Seq[Sequence]) -> None:
        """The sequences that the coming step decodes: what a row costs depends on how much it looks back at, and on how
        many there are anyway."""
        self.crowd.begin(len(seqs))
        self.beside(len(seqs))
        if seqs:
            tokens = sum(len(seq.token_ids) for seq in seqs) / len(seqs)
            self._expected = self.curve.behind(tokens, len(seqs))
            self._seconds = cache(self._pace.corrected(self._expected) if self.curve.context else self._expected)

    def beside(self, num_sequences: int) -> None:
        """What is asked next is about so many of the step's sequences: the others have a row each all the same."""
        self._others = max(0, self.crowd.size - num_sequences)

    def observe_step(self, num_sequences: int, num_rows: int, seconds: float, num_tokens: float, whole: float) -> None:
        """A step over the sequences of ``prepare``, without prompt chunks, committed ``num_tokens`` in ``whole``
        seconds, ``seconds`` of them in its forward. A curve that was not measured here (it has no context) is taken at
        its word."""
        expected = self._expected(num_rows)
        if self.curve.context:
            self._pace.observe(num_rows, expected, seconds)
        else:
            whole += expected - seconds
        plain_steps = whole / (self._seconds(num_sequences) + _OVERHEAD)
        self._rate.observe(num_tokens / num_sequences, plain_steps)

    def budget(self, seq: Sequence, drafter: Drafter, default: int, num_sequences: int) -> int:
        """How many tokens to ask the drafter for. One that takes next to no time is asked for ``default``; in a crowd,
        where next to nothing adds up, only now and then while none of a sequence's drafts pays, and not at all where
        drafting as a whole does not pay."""
        if seq.fixed_tokens is not None:
            return seq.fixed_tokens
        if self.crowd.off():
            seq.planned = f"speculation off: drafting for {self.crowd.size} at a time costs more time than it saves"
            return 0
        self.crowd.ask(seq)
        if drafter.weighs_cost or drafter.seconds(num_sequences, 1) == 0.0:
            return 0 if self.crowd.resting(self._idle.get(seq.seq_id, 0)) else default
        waited = self._waited.setdefault(seq.seq_id, 0)
        self._waited[seq.seq_id] = waited + 1
        if self.crowd.resting(waited):
            return 0
        without = plain(self, num_sequences)
        levels = range(1, (drafter.max_levels or 2 * default) + 1)
        best = worth_asking(self, drafter, drafter.method, seq.seq_id, num_sequences, levels)
        if best.gain > without.gain + MARGIN * num_sequences:
            self._waited.pop(seq.seq_id, None)
            return open_ended(drafter, best.length, levels)
        seq.planned = f"speculation off: a draft of {drafter.method} costs more time than it saves"
        return drafter.nodes(1) if waited and waited % (_EXPLORE * num_sequences) == 0 else 0

    def puts_off(self, seq: Sequence, num_sequences: int) -> bool:
        """Whether a drafter is to meet ``seq`` later, if ever: not in a crowd for which drafting does not pay just now,
        and not where following it takes longer than the drafts behind it will earn."""
        if seq.fixed_tokens is not None or self.crowd.off(num_sequences):
            return seq.fixed_tokens is None
        if refused := self._meetings.refuses(seq, num_sequences, self.step_seconds(num_sequences)):
            seq.planned = "speculation off: following the text takes longer than drafts would save on what is left"
        return refused

    def met(self, seq: Sequence, seconds: float) -> None:
        """A drafter took so long to follow the text of ``seq``."""
        if seq.fixed_tokens is None:
            self.crowd.met(seq, seconds)
            self._meetings.met(seq, seconds)

    def settle(self, seqs: Seq[Sequence], num_drafted: int, num_extra: int, drafting: float, whole: float) -> None:
        """A step that decoded ``seqs`` in ``whole`` seconds verified so many drafted rows, got so many tokens beyond
        one each, and spent ``drafting`` seconds on asking."""
        self._others = 0
        self.crowd.settle(seqs, num_drafted, num_extra, drafting, whole, self.step_seconds)
        if seqs and not self.crowd.off() and all(seq.begun and seq.fixed_tokens is None for seq in seqs):
            count, plain_seconds = len(seqs), self.step_seconds(len(seqs))
            taken = drafting + self.step_seconds(count + num_drafted) - plain_seconds
            self._meetings.settle(seqs, count + num_extra, num_extra * plain_seconds / count - taken)

    def going_rate(self, num_sequences: int) -> float:
        """As in ``Estimates``."""
        count = num_sequences + self._others
        return self._rate.speed_up * count / self.step_seconds(num_sequences)

    @property
    def speed_up(self) -> float:
        """Tokens per second of late, over plain decoding's."""
        return self._rate.speed_up

    def floor(self, drafter: Drafter, num_sequences: int) -> float:
        """The path probability below which one more drafted token costs more time than it is worth; over 0.

        A token of path probability P pays iff P / (its seconds) is over the going rate. A lookup's own probabilities
        are rough: what calibration may yet raise to twice as much is drafted. A drafter that weighs its own costs sees
        to its members itself.
        """
        one = 0.0 if drafter.weighs_cost else drafter.more_seconds(num_sequences)
        least, most = num_sequences + self._others, 4 * num_sequences + self._others
        row = (self._seconds(most) - self._seconds(least)) / 3.0
        rate = self.going_rate(num_sequences) / num_sequences
        return max(_LEAST, min(0.9, rate * (one + row)) if one else min(0.5, rate * row / 2.0))

    def chance(self, seq_id: int, source: str, depth: int, score: float) -> float:
        """As in ``Estimates``."""
        return self.calibration.estimate(seq_id, source, depth, score)

    def at_depth(self, seq_id: int, source: str, depth: int, prior: float) -> float:
        """As in ``Estimates``."""
        return self.calibration.at_depth(seq_id, source, depth, prior)

    def step_seconds(self, num_rows: int) -> float:
        """As in ``Estimates``."""
        return self._seconds(num_rows + self._others) + _OVERHEAD

    def learn(self, seq_id: int, draft: Draft, emitted: Seq[int]) -> None:
        """As in ``Estimates``."""
        self.calibration.observe(seq_id, draft, emitted)

    def select(self, seqs: Seq[Sequence], drafts: Seq[Draft]) -> list[Draft]:
        """The drafts with the nodes that pay.

        Prompt chunks in the same step do not count: their rows are owed anyway, and against so long a step every draft
        would look cheap, though its row costs what it always does.
        Only automatic delta drafts are pruned: what has a law keeps the shape it was drawn in.
        """
        ranked: list[tuple[float, int, int]] = []
        fixed_rows = 0
        for index, (seq, draft) in enumerate(zip(seqs, drafts, strict=True)):
            if _prunable(seq, draft):
                ranked.extend((-p, index, node) for node, p in enumerate(path_chances(self, seq.seq_id, draft)))
            else:
                fixed_rows += len(draft)
        if not ranked:
            self._note(seqs, drafts)
            return list(drafts)
        ranked.sort()
        count, gain = self._best_prefix([-p for p, _, _ in ranked], len(seqs), len(seqs) + fixed_rows)
        kept: dict[int, list[int]] = {}
        for _, index, node in ranked[:count]:
            kept.setdefault(index, []).append(node)
        out = []
        for index, (seq, draft) in enumerate(zip(seqs, drafts, strict=True)):
            nodes = sorted(kept.get(index, ()))
            if _prunable(seq, draft) and len(draft):
                seq.planned = _words(len(nodes), len(draft), gain)
                if len(nodes) < len(draft):
                    draft = draft.keep(nodes) if nodes or draft.probes else EMPTY
            out.append(draft)
        self._note(seqs, out)
        return out

    def _note(self, seqs: Seq[Sequence], drafts: Seq[Draft]) -> None:
        off = self.crowd.off()
        for seq, draft in zip(seqs, drafts, strict=True):
            self._idle[seq.seq_id] = 0 if len(draft) or off else self._idle.get(seq.seq_id, 0) + 1

    def _best_prefix(self, probabilities: Seq[float], num_sequences: int, rows: int) -> tuple[int, float]:
        """How many to keep, and by what the tokens per second of the step grow."""
        price = self.going_rate(num_sequences)
        plain_seconds, tokens = self.step_seconds(rows), list(accumulate(probabilities, initial=float(num_sequences)))
        gains = [each - price * self.step_seconds(rows + count) for count, each in enumerate(tokens)]
        best = max(range(len(gains)), key=gains.__getitem__)
        if gains[best] <= gains[0] + MARGIN * num_sequences:
            return 0, 1.0
        least = gains[best] - _UNSURE * tokens[best]
        while best and gains[best - 1] >= least and probabilities[best - 1] < _SURE * price * self._row(rows + best):
            best -= 1
        return best, tokens[best] / num_sequences * plain_seconds / self.step_seconds(rows + best)

    def _row(self, rows: int) -> float:
        """Seconds that the last of ``rows`` rows adds."""
        return self.step_seconds(rows) - self.step_seconds(rows - 1)

    def observe(self, seq: Sequence, draft: Draft, emitted: Seq[int], path: Seq[int], target_draws: bool) -> None:
        """Learn from a step: ``draft`` as it was proposed, what was emitted, which nodes were accepted."""
        if not len(draft):
            return
        for watcher in self.watchers:
            watcher(draft, emitted)
        if target_draws:
            self.calibration.observe(seq.seq_id, draft, emitted)
        else:
            self.calibration.observe_path(seq.seq_id, draft, path)

    def release(self, seq: Sequence) -> None:
        """A sequence has left."""
        self.calibration.release(seq.seq_id)
        self._waited.pop(seq.seq_id, None)
        self._idle.pop(seq.seq_id, None)
        self.crowd.release(seq)
        self._meetings.release(seq)


def _prunable(seq: Sequence, draft: Draft) -> bool:
    return seq.fixed_tokens is None and draft.all_delta


def _words(kept: int, proposed: int, gain: float) -> str:
    if kept == 0:
        return f"nothing drafted in the last step: none of {proposed} proposed tokens was likely enough to save time"
    return f"{kept} of {proposed} proposed tokens verified in the last step: expected to be {gain:.2f}x as fast"
