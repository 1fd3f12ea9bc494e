"""Route: each step, or each request, goes to the drafter that promises most tokens for its time.

Source: TAPS, arXiv 2603.27027, which routes by the mean confidence of the drafts; here confidence is calibrated and
time counts. Members whose drafts cost nothing are asked first, and the best of their drafts is what a member that takes
time must beat, by its acceptance so far, before it is asked. A request whose ``task`` stands in ``route_tasks`` has
that one member. With ``route_by`` "bandit" a sequence stays with one member for some steps, chosen by Thompson sampling
over what the members made per second. Which member drafts never changes the text under ``sample``. Under the classical
rules the text keeps its law: a draft of samples is used as it comes, and whether to ask for it is decided before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from torch import Tensor

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.bandit import Bandit
from outrider.drafters.base import Committed, DraftNoise, DraftSequence
from outrider.drafters.estimates import Worth, plain, worth_of
from outrider.drafters.members import Composite, Member, build_members
from outrider.drafters.registry import DrafterContext
from outrider.drafters.sharing import with_probes
from outrider.drafters.union import renamed

_MAX_TASKS = 256  # further tasks learn together
_EPISODE = 16  # steps that a sequence stays with the member that the bandit chose


@dataclass(slots=True)
class _Episode:
    """A play of the bandit for one sequence: what it chose, and what that has made so far."""

    arm: int
    number: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Offer:
    """The best draft that a sequence has been offered so far."""

    seq: DraftSequence
    budget: int
    worth: Worth
    draft: Draft = EMPTY
    key: int = -1


class RouteDrafter(Composite):
    """One member's draft a step. ``tasks``: members' keys by task; ``bandit``: by what paid, not by confidence."""

    def __init__(
        self,
        method: str,
        members: Sequence[Member],
        context: DrafterContext,
        tasks: Mapping[str, int],
        bandit: bool,
    ) -> None:
        super().__init__(method, members, context)
        self._tasks, self._seed = tasks, context.seed
        self._bandit = bandit
        self._bandits: dict[str, Bandit] = {}  # by task: what pays for one need not pay for another
        self._episodes: dict[int, _Episode] = {}
        self._used: dict[int, int] = {}  # whose draft the latest proposal was

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """The members meet the sequence; the bandit makes its first choice."""
        super().begin(seq, hidden)
        if self._bandit and seq.task not in self._tasks:
            self._episodes[seq.seq_id] = _Episode(self._pick(seq, 0))

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """The members observe; the estimates learn from the drafts that were asked for and not used."""
        used = self._used.pop(seq.seq_id, -1)
        for key, draft in self.following(seq).drafts.items():
            if key != used and len(draft) and draft.all_delta:
                named = renamed(self.members[key].name, draft, self.scope)
                self._estimates.learn(seq.seq_id, named, committed.token_ids)
        if seq.seq_id in self._episodes:
            self._play(seq, committed)
        super().observe(seq, committed)

    def release(self, seq: DraftSequence) -> None:
        """The members let go of the sequence."""
        self._episodes.pop(seq.seq_id, None)
        self._used.pop(seq.seq_id, None)
        super().release(seq)

    def close(self) -> None:
        """Close every member and forget what paid."""
        self._bandits.clear()
        self._episodes.clear()
        super().close()

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """The draft of one member for each sequence."""
        self.start(sequences, noise)
        without = Worth(0, 1.0, 0.0, -inf) if self.fixed else plain(self.known, len(sequences))
        offers = [_Offer(seq, budget, without) for seq, budget in zip(sequences, budgets, strict=True)]
        for member in self.members:
            if not _first(member, noise):
                continue
            asked = [offer for offer in offers if self._allowed(offer.seq, member)]
            drafts = self.ask(member, [o.seq for o in asked], {o.seq.seq_id: o.budget for o in asked}, noise)
            self._compare(member, asked, drafts, len(sequences), sampled=False)
        for key, asked in self._choices([m for m in self.members if not _first(m, noise)], offers).items():
            member = self.members[key]
            wanted = {o.seq.seq_id: abs(self.following(o.seq).asked[key]) for o in asked}
            drafts = self.ask(member, [o.seq for o in asked], wanted, noise)
            self._compare(member, asked, drafts, len(sequences), sampled=member.draws and not noise.shared)
        for offer in offers:
            self._used[offer.seq.seq_id] = offer.key
        return [offer.draft for offer in offers]

    def _choices(self, timed: Sequence[Member], offers: Sequence[_Offer]) -> dict[int, list[_Offer]]:
        """Which members that take time to ask for which sequences: for each the one that gains most, if more than what
        the sequence has been offered; or one that is due to be tried."""
        best: dict[int, tuple[float, int]] = {}
        for member in timed:
            group = [offer for offer in offers if self._allowed(offer.seq, member)]
            if not group:
                continue
            self.set_floor(member, len(offers))
            seqs, limits, against = zip(*((o.seq, o.budget, o.worth) for o in group), strict=True)
            for offer, worth in zip(group, self.lengths(member, seqs, limits, [()] * len(seqs), against), strict=True):
                asked = self.following(offer.seq).asked[member.key]
                gain = inf if asked < 0 else worth.gain if asked > 0 else -inf
                if gain > best.get(offer.seq.seq_id, (-inf, 0))[0]:
                    best[offer.seq.seq_id] = (gain, member.key)
        out: dict[int, list[_Offer]] = {}
        for offer in offers:
            if offer.seq.seq_id in best:
                out.setdefault(best[offer.seq.seq_id][1], []).append(offer)
        return out

    def _compare(
        self, member: Member, offers: Sequence[_Offer], drafts: Mapping[int, Draft], num_sequences: int, sampled: bool
    ) -> None:
        """Take the member's drafts where they are better than what is offered; samples as they come."""
        for offer in offers:
            draft = drafts.get(offer.seq.seq_id, EMPTY)
            if not len(draft):
                if draft.probes is not None and not len(offer.draft):
                    offer.key, offer.draft = member.key, with_probes(EMPTY, {member.key: draft})
                continue
            named = renamed(member.name, draft, self.method)
            chances = self.chances(offer.seq, named)
            worth = worth_of(self.known, chances, num_sequences, whole=self.fixed)
            if sampled or worth.gain > offer.worth.gain:
                offer.key, offer.draft, offer.worth = member.key, with_probes(named, {member.key: draft}), worth

    def _allowed(self, seq: DraftSequence, member: Member) -> bool:
        """Whether the sequence's task or the bandit leaves it to ``member``; any may serve where that one failed."""
        chosen = self._tasks.get(seq.task)
        if chosen is None and seq.seq_id in self._episodes:
            chosen = self._episodes[seq.seq_id].arm
        return chosen is None or chosen == member.key or chosen in self.following(seq).out

    def _play(self, seq: DraftSequence, committed: Committed) -> None:
        """Count a step of the bandit's play; at its end the arm gets its reward and the next one is chosen."""
        play, state = self._episodes[seq.seq_id], self.following(seq)
        tokens = abs(state.asked.get(play.arm, 0))
        rows = 1 + (0 if committed.draft is None else len(committed.draft))
        play.seconds += self._estimates.step_seconds(rows)
        play.seconds += self.members[play.arm].drafter.seconds(1, tokens) if tokens else 0.0
        play.tokens, play.steps = play.tokens + len(committed.token_ids), play.steps + 1
        if play.steps == _EPISODE:
            self._arms(seq).reward(play.arm, play.tokens, play.seconds)
            self._episodes[seq.seq_id] = _Episode(self._pick(seq, play.number + 1), play.number + 1)

    def _pick(self, seq: DraftSequence, number: int) -> int:
        out = self.following(seq).out
        allowed = [member.key for member in self.members if member.key not in out]
        return self._arms(seq).pick((seq.seq_id, number), allowed)

    def _arms(self, seq: DraftSequence) -> Bandit:
        task = seq.task if seq.task in self._bandits or len(self._bandits) < _MAX_TASKS else ""
        if task not in self._bandits:
            self._bandits[task] = Bandit(len(self.members), self._seed)
        return self._bandits[task]


def _first(member: Member, noise: DraftNoise) -> bool:
    """Whether a member may be asked before anything is decided: its drafts cost nothing and are no samples."""
    return member.free and (noise.shared or not member.draws)


def build(config: SpeculativeConfig, context: DrafterContext) -> RouteDrafter:
    """The drafter of method ``route``."""
    members = build_members(config, context)
    places = {member.name: member.key for member in reversed(members)}
    tasks = {task: places[name] for task, name in (config.route_tasks or {}).items()}
    return RouteDrafter(config.method, members, context, tasks, config.route_by == "bandit")
