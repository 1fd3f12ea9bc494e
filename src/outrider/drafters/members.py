"""Drafters made of drafters: what ``merge``, ``route`` and ``auto`` share.

Every member meets every sequence and observes every step, asked or not, so that each can be asked at any time. A
member that fails is left out for that sequence, with a logged reason, and the others go on.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from math import inf
from operator import mul

from torch import Tensor

from outrider.cache.pool import BlockPool
from outrider.config import SpeculativeConfig
from outrider.core.draft import Draft
from outrider.drafters import registry
from outrider.drafters.base import Committed, Drafter, DraftNoise, DraftSequence
from outrider.drafters.estimates import (
    MARGIN,
    Estimates,
    NoEstimates,
    Worth,
    open_ended,
    path_chances,
    within,
    worth_asking,
)
from outrider.drafters.registry import DrafterContext
from outrider.drafters.sharing import share_of, taps_of, union
from outrider.errors import ContractError

log = logging.getLogger(__name__)

_UNLEARNT = NoEstimates()
_EXPLORE = 24  # steps after which a member that does not pay is tried again; each try in vain doubles them
_MAX_EXPLORE = 384


@dataclass(slots=True)
class Member:
    """A drafter within a drafter. ``key``: its place; ``name``: shared by members that are set up alike; ``tokens``:
    what to ask it for when nobody knows better; ``draws``: under the rules that look at laws its drafts are samples, so
    nothing may be chosen by them once they are drawn; ``model``: a draft model of its own makes them."""

    key: int
    name: str
    drafter: Drafter
    tokens: int
    draws: bool
    model: bool = False

    @property
    def listens(self) -> bool:
        """It wants to be told of every step; others look at the sequence when they are asked."""
        return type(self.drafter).observe is not Drafter.observe

    @property
    def free(self) -> bool:
        """Its drafts take next to no time."""
        return self.drafter.seconds(1, 1) == 0.0


@dataclass(slots=True)
class Following:
    """What a drafter with members remembers of a sequence, by the members' keys. All but ``met`` and ``out`` are hints.

    ``met``: members that know the sequence; ``out``: those that failed; ``waits``: steps since a member that does not
    pay was tried, and how many to wait; ``asked``: tokens that the latest proposal asked each member for, 0 when it
    was thought not to pay; ``drafts``: what they answered.
    """

    met: set[int] = field(default_factory=set)
    out: set[int] = field(default_factory=set)
    waits: dict[int, tuple[int, int]] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    drafts: dict[int, Draft] = field(default_factory=dict)

    def forget(self) -> None:
        """The latest proposal is over."""
        self.asked, self.drafts = {}, {}


class Composite(Drafter):
    """Hands every hook to its members. A subclass says whom ``propose`` asks and what becomes of the answers."""

    weighs_cost = True

    def __init__(self, method: str, members: Sequence[Member], context: DrafterContext) -> None:
        self.method, self.members = method, members
        self._outer, self.scope = context.scope, within(context.scope, method)
        self.needs = union([member.drafter.needs for member in members])
        self.known: Estimates = context.estimates or _UNLEARNT  # what decides about the proposal at hand
        self._estimates = self.known
        self._vocab_size, self._strict = context.vocab_size, context.strict
        self._following: dict[int, Following] = {}
        self._asked = [1.0] * len(members)  # share of proposals that asked it

    @abstractmethod
    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """As in ``Drafter``."""

    def seconds(self, num_sequences: int, num_tokens: int) -> float:
        """Expected time: that of each member, as often as it was asked of late."""
        return sum(
            self._asked[member.key] * member.drafter.seconds(num_sequences, num_tokens) for member in self.members
        )

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """Every member meets the sequence."""
        state = self._following[seq.seq_id] = Following()
        for member in self.members:
            self._meet(member, seq, state, hidden)

    def _meet(self, member: Member, seq: DraftSequence, state: Following, hidden: Tensor | None = None) -> None:
        state.met.add(member.key)
        taps = taps_of(self.needs, member.drafter.needs, hidden)
        self._guard(member, seq, lambda drafter: drafter.begin(seq, taps))

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Every member observes, with the hidden states, rows and probes that it asked for."""
        state = self.following(seq)
        for member in self.members:
            if member.listens and member.key in state.met:
                self._guard(member, seq, partial(self._tell, member, seq, committed))
            self._note(member, state)
        state.forget()

    def _tell(self, member: Member, seq: DraftSequence, committed: Committed, drafter: Drafter) -> None:
        drafter.observe(seq, share_of(committed, self.needs, drafter.needs, member.key))

    def _note(self, member: Member, state: Following) -> None:
        """Count how often a member is asked, and how long one that does not pay was left alone."""
        if member.key not in state.asked:
            return
        length = state.asked[member.key]
        self._asked[member.key] += 0.02 * ((length > 0) - self._asked[member.key])
        waited, limit = state.waits.get(member.key, (0, _EXPLORE))
        if length == 0:
            state.waits[member.key] = (waited + 1, limit)
        elif length < 0:
            state.waits[member.key] = (0, min(2 * limit, _MAX_EXPLORE))
        else:
            state.waits.pop(member.key, None)

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """Every member that knows the sequence is cut back."""
        state = self.following(seq)
        state.forget()
        for member in self.members:
            if member.key in state.met:
                self._guard(member, seq, lambda drafter: drafter.truncate(seq, length))

    def release(self, seq: DraftSequence) -> None:
        """Every member that knows the sequence lets go of it, also when another one fails to."""
        state = self._following.pop(seq.seq_id, None)
        with ExitStack() as stack:
            for member in self.members:
                if state is not None and member.key in state.met:
                    stack.callback(self._let_go, member, seq)

    def kv_pools(self) -> dict[str, BlockPool]:
        """Those of all members; a second one of a name has its member's number behind it."""
        out: dict[str, BlockPool] = {}
        for member in self.members:
            for name, pool in member.drafter.kv_pools().items():
                out[f"{name} {member.key}" if name in out else name] = pool
        return out

    def close(self) -> None:
        """Close every member."""
        self._following.clear()
        for member in self.members:
            member.drafter.close()

    def following(self, seq: DraftSequence) -> Following:
        """What is remembered of ``seq``. Raises ContractError for a sequence that was never begun."""
        try:
            return self._following[seq.seq_id]
        except KeyError:
            raise ContractError(f"drafter {self.method!r} was never given begin for sequence {seq.seq_id}") from None

    @property
    def fixed(self) -> bool:
        """The user fixed K: as many tokens are asked for as the budget has."""
        return self.confidence_floor == 0.0

    def start(self, sequences: Sequence[DraftSequence], noise: DraftNoise) -> None:
        """A proposal begins: what the last one asked is forgotten.

        Under a classical rule the text depends on the shape of the drafts. Where the user fixed K as well it must not
        depend on other requests or on the machine, so that nothing that was learnt or measured may decide.
        """
        self.known = _UNLEARNT if self.fixed and not noise.shared else self._estimates
        for seq in sequences:
            state = self.following(seq)
            state.forget()

    def chances(self, seq: DraftSequence, draft: Draft) -> list[float]:
        """P(accepted) of every node of a draft of this drafter, its ancestors included."""
        return path_chances(self.known, seq.seq_id, draft, self._outer)

    def set_floor(self, member: Member, num_sequences: int) -> None:
        """Tell a member below which path probability a token does not pay; nothing where K is fixed."""
        if self.fixed:
            member.drafter.stop_below(0.0)
            return
        label, known = within(self.scope, member.name), self.known
        floor = known.floor(member.drafter, num_sequences)
        member.drafter.stop_below(floor, lambda seq_id, depth, score: known.chance(seq_id, label, depth, score))

    def ask(
        self, member: Member, sequences: Sequence[DraftSequence], budgets: Mapping[int, int], noise: DraftNoise
    ) -> dict[int, Draft]:
        """The member's drafts by ``seq_id``, for those of ``sequences`` with a budget that it did not fail at."""
        if not sequences:
            return {}
        if member.free:
            member.drafter.stop_below(self.confidence_floor)  # the engine's, for drafts that cost nothing
        group = []
        for seq in sequences:
            state = self.following(seq)
            if budgets[seq.seq_id] > 0 and member.key not in state.out:
                group.append(seq)
        try:
            return self._drafts(member, group, budgets, noise) if group else {}
        except Exception as error:
            if self._strict:
                raise
            if len(group) == 1:
                self._leave_out(member, group[0], error)
                return {}
        out: dict[int, Draft] = {}
        for seq in group:  # proposing changes no state, so that the sequence at fault can be found by asking again
            try:
                out.update(self._drafts(member, [seq], budgets, noise))
            except Exception as error:
                self._leave_out(member, seq, error)
        return out

    def _drafts(
        self, member: Member, group: Sequence[DraftSequence], budgets: Mapping[int, int], noise: DraftNoise
    ) -> dict[int, Draft]:
        wanted = [budgets[seq.seq_id] + member.drafter.extra_tokens for seq in group]
        out = {}
        for seq, budget, draft in zip(group, wanted, member.drafter.propose(group, wanted, noise), strict=True):
            if len(draft):
                draft.check(self._vocab_size, budget)
            out[seq.seq_id] = self.following(seq).drafts[member.key] = draft
        return out

    def lengths(
        self,
        member: Member,
        sequences: Sequence[DraftSequence],
        limits: Sequence[int],
        beside: Sequence[Sequence[float]],
        against: Sequence[Worth],
        bar: float = inf,
    ) -> list[Worth]:
        """How many tokens to ask a member that takes time for, and what they promise; none where that does not pay.

        ``limits``: most tokens; ``beside``: conditional acceptance by depth of a draft that will be joined with it;
        ``against``: what the step is worth without it; ``bar``: over whose rate it is asked in any case, times this.
        ``Following.asked`` takes down the answer, below 0 where the member is to be tried though it should not pay.
        """
        count, out, reach = len(sequences), [], [self._levels(member, limit) for limit in limits]
        for seq, levels, other, without in zip(sequences, reach, beside, against, strict=True):
            label, timed = within(self.scope, member.name), self.known is not _UNLEARNT
            worth = worth_asking(self.known, member.drafter, label, seq.seq_id, count, levels, other, timed)
            pays = worth.gain > without.gain + MARGIN * count or worth.rate > bar * without.rate
            out.append(worth if pays else replace(without, length=0))
        if count > 1 and not self.fixed:
            out = self._together(member, out, against)
        for seq, limit, levels, worth in zip(sequences, limits, reach, out, strict=True):
            self.following(seq).asked[member.key] = open_ended(member.drafter, worth.length, levels)
            if worth.length == 0 and limit > 0 and self._due(member, seq):
                self.following(seq).asked[member.key] = -limit if self.fixed else -min(limit, member.drafter.nodes(1))
        return out

    def _levels(self, member: Member, limit: int) -> Sequence[int]:
        """Levels of the drafts that a member may be asked for within ``limit`` tokens: the most, where K is fixed."""
        drafter = member.drafter
        most = drafter.max_levels or (limit if self.fixed else 2 * member.tokens)
        levels = [level for level in range(1, most + 1) if drafter.nodes(level) <= limit]
        return levels[-1:] if self.fixed else levels

    def _together(self, member: Member, worths: list[Worth], against: Sequence[Worth]) -> list[Worth]:
        """Drafting for some holds up all: keep the sequences that gain most, as many as pay for the time."""
        order = sorted(range(len(worths)), key=lambda i: against[i].expected - worths[i].expected)
        rows = sum(worth.rows for worth in against)
        tokens = sum(worth.expected for worth in against)
        price = self.known.going_rate(len(worths))
        best, kept = tokens - price * self.known.step_seconds(rows), 0
        longest = 0
        for count, index in enumerate(order, start=1):
            worth = worths[index]
            if worth.length == 0:
                continue
            longest = max(longest, worth.length)
            tokens += worth.expected - against[index].expected
            rows += max(0, worth.rows - against[index].rows)
            seconds = member.drafter.seconds(count, longest) + self.known.step_seconds(rows)
            if tokens - price * seconds > best:
                best, kept = tokens - price * seconds, count
        asked = set(order[:kept])
        return [w if i in asked else replace(a, length=0) for i, (w, a) in enumerate(zip(worths, against, strict=True))]

    def _due(self, member: Member, seq: DraftSequence) -> bool:
        """Whether a member that does not pay is to be tried again."""
        state = self.following(seq)
        waited, limit = state.waits.get(member.key, (0, _EXPLORE))
        return waited + 1 >= limit

    def _guard(self, member: Member, seq: DraftSequence, call: Callable[[Drafter], None]) -> None:
        try:
            call(member.drafter)
        except Exception as error:
            if self._strict:
                raise
            self._leave_out(member, seq, error)

    def _leave_out(self, member: Member, seq: DraftSequence, error: Exception) -> None:
        """Go on without ``member``, which lets go of the sequence; the last to fail takes the whole drafter along."""
        state = self.following(seq)
        state.out.add(member.key)
        log.warning("%s: sequence %d goes on without %s: %r", self.method, seq.seq_id, member.name, error)
        if member.key in state.met:
            state.met.discard(member.key)
            self._let_go(member, seq)
        if len(state.out) == len(self.members):
            raise error

    def _let_go(self, member: Member, seq: DraftSequence) -> None:
        try:
            member.drafter.release(seq)
        except Exception as error:
            if self._strict:
                raise
            log.warning("%s: %s could not release sequence %d: %r", self.method, member.name, seq.seq_id, error)


def build_members(
    config: SpeculativeConfig, context: DrafterContext, configs: Sequence[SpeculativeConfig] | None = None
) -> list[Member]:
    """The members of a config, or those of them in ``configs``, built; equal ones among them share a name, and what
    they agree on counts once."""
    configs = registry.members(config) if configs is None else configs
    inner = replace(context, scope=within(context.scope, config.method))
    return [
        Member(key, name, registry.build(each, inner), default_tokens(each), registry.draws(each), _has_model(each))
        for key, (name, each) in enumerate(zip(registry.member_names(configs), configs, strict=True))
    ]


def _has_model(config: SpeculativeConfig) -> bool:
    return registry.info(config.method).needs_model


def default_tokens(config: SpeculativeConfig) -> int:
    """Nodes to ask a drafter for when nothing was measured."""
    if config.tree:
        return sum(accumulate(config.tree, mul))
    return registry.info(config.method).default_tokens * config.num_chains
