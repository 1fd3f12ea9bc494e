"""Drafting for a batch: which drafter serves which sequence, budgets, trimming, and what happens when one fails."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from torch import Tensor

from outrider import native
from outrider.config import SpeculativeConfig
from outrider.core.constraint import Constraint
from outrider.core.draft import EMPTY, Draft
from outrider.core.verifiers.base import Verifier
from outrider.drafters.base import Committed, Drafter
from outrider.drafters.registry import REGISTRY
from outrider.engine.laws import FreshNoise, SharedNoise
from outrider.engine.planner import Planner
from outrider.engine.sequence import Sequence
from outrider.errors import ContractError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Method:
    """A loaded method: its drafter, its rule, and how many tokens to ask for when nobody fixed K."""

    config: SpeculativeConfig
    drafter: Drafter
    verifier: Verifier

    @property
    def default_tokens(self) -> int:
        """The budget for the planner to cut down."""
        return REGISTRY[self.config.method].default_tokens


class Drafting:
    """All loaded methods. ``strict``: a failing drafter is an error; else it is switched off for its request.

    ``max_len``: tokens that a sequence can have. ``library``: the native kernels, None to do without.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        planner: Planner,
        vocab_size: int,
        max_len: int,
        strict: bool,
        library: native.Library | None = None,
    ) -> None:
        self.methods, self.planner, self._strict = methods, planner, strict
        self._vocab_size, self._max_len = vocab_size, max_len
        self._shared = SharedNoise(library)
        self.num_asked: dict[int, int] = {}  # nodes that the latest step asked for, by seq_id

    def propose(
        self, seqs: Seq[Sequence], room: Callable[[Sequence, int], int], decoded: Seq[Sequence] | None = None
    ) -> tuple[list[Draft], list[Draft], dict[int, float]]:
        """For each sequence the draft to verify, and the draft as proposed; and seconds of drafting by ``seq_id``.

        ``room(seq, wanted)``: how many of ``wanted`` draft rows the cache has slots for. It is asked before anything
        is drawn: a draft that was dropped for its size afterwards would bias the rules that look at its law.
        ``decoded``: all that the step decodes, those that nobody drafts for included; None: ``seqs``.
        """
        self.planner.prepare(seqs if decoded is None else decoded)
        proposed: dict[int, Draft] = {}
        seconds: dict[int, float] = {}
        self.num_asked.clear()
        for name, method in self.methods.items():
            group = [seq for seq in seqs if seq.method == name and seq.drafter is not None and seq.begun]
            if group:
                self.planner.beside(len(group))
                begin = time.perf_counter()
                proposed.update(self._ask(method, group, room))
                share = (time.perf_counter() - begin) / len(group)
                seconds.update({seq.seq_id: share for seq in group})
        full = [proposed.get(seq.seq_id, EMPTY) for seq in seqs]
        self.planner.beside(len(seqs))
        return self.planner.select(seqs, full), full, seconds

    def _ask(self, method: Method, group: Seq[Sequence], room: Callable[[Sequence, int], int]) -> dict[int, Draft]:
        budgets = {seq.seq_id: room(seq, self._budget(method, seq, len(group))) for seq in group}
        self.num_asked.update(budgets)
        group = [seq for seq in group if budgets[seq.seq_id] > 0]
        if not group:
            return {}
        automatic = all(seq.fixed_tokens is None for seq in group)
        self._set_floor(method.drafter, len(group) if automatic else 0)
        try:
            return self._drafts(method, group, budgets, room)
        except Exception as error:  # whatever a drafter does wrong, its requests go on
            if self._strict:
                raise _contract(method, error) from error
            if len(group) == 1:
                self._switch_off(group[0], error)
                return {}
        out: dict[int, Draft] = {}
        for seq in group:  # proposing changes no state, so that the one at fault can be found by asking again
            try:
                out.update(self._drafts(method, [seq], budgets, room))
            except Exception as error:
                self._switch_off(seq, error)
        return out

    def _set_floor(self, drafter: Drafter, num_sequences: int) -> None:
        """Tell a drafter below which path probability a token does not pay; nothing where K is fixed."""
        if not num_sequences:
            drafter.stop_below(0.0)
            return
        chance, name = self.planner.chance, drafter.method
        drafter.stop_below(
            self.planner.floor(drafter, num_sequences), lambda seq_id, depth, score: chance(seq_id, name, depth, score)
        )

    def _drafts(
        self, method: Method, group: Seq[Sequence], budgets: Mapping[int, int], room: Callable[[Sequence, int], int]
    ) -> dict[int, Draft]:
        rule = method.verifier.rule
        noise = self._shared if rule.shared_noise else FreshNoise(rule.merges_paths)
        drafts = method.drafter.propose(group, [budgets[seq.seq_id] for seq in group], noise)
        out = {}
        for seq, draft in zip(group, drafts, strict=True):
            self._check(draft, budgets[seq.seq_id])
            out[seq.seq_id] = self._fitting(seq, draft, room)
        return out

    def _budget(self, method: Method, seq: Sequence, num_sequences: int) -> int:
        """Nodes to ask for: K a path where the user fixed K, no deeper than there are tokens left, and what is free."""
        wanted = self.planner.budget(seq, method.drafter, method.default_tokens, num_sequences)
        if seq.fixed_tokens is not None:
            wanted *= method.config.num_chains
        depth, row = self._max_depth(seq), REGISTRY[method.config.method]
        if row.shapes != ("tree",) or row.needs_model:  # those of any form are cut to the depth afterwards
            wanted = min(wanted, method.drafter.nodes(depth))
        return wanted + method.drafter.extra_tokens if wanted > 0 and depth > 0 else 0

    def _max_depth(self, seq: Sequence) -> int:
        """A draft of depth d commits up to d + 1 tokens: no more than are left."""
        return max(0, seq.tokens_left(self._max_len) - 1)

    def _check(self, draft: Draft, budget: int) -> None:
        draft.check(self._vocab_size, budget)
        for token in draft.tokens:
            operator.index(token)
        if draft.probes is not None:
            probes = draft.probes
            Draft(probes.tokens, probes.parents, source=f"{draft.source} probes").check(
                self._vocab_size, len(probes.tokens)
            )

    def _fitting(self, seq: Sequence, draft: Draft, room: Callable[[Sequence, int], int]) -> Draft:
        """The draft without nodes that cannot be committed: too deep, or outside of what the output may be; and without
        probes that have no slot or no position."""
        if seq.constraint is not None and draft.all_delta:
            draft = _allowed(draft, seq.constraint, seq.output_ids)
        limit, depths = self._max_depth(seq), draft.depths()
        if depths and max(depths) > limit:
            draft = draft.keep([node for node, depth in enumerate(depths) if depth <= limit])
        if draft.probes is None:
            return draft
        rows = len(draft) + len(draft.probes.tokens)
        deepest = max(Draft(draft.probes.tokens, draft.probes.parents).depths(), default=0)
        if len(seq.token_ids) + deepest > self._max_len or room(seq, rows) < rows:
            return replace(draft, probes=None)
        return draft

    def begin(self, seq: Sequence, hidden: Tensor | None) -> float:
        """The sequence has its first token (or was recomputed): its drafter meets it. Returns seconds."""
        start = time.perf_counter()
        if seq.drafter is not None and not seq.begun:
            seq.begun = True
            self._guard(seq, lambda drafter: drafter.begin(seq, hidden))
        return time.perf_counter() - start

    def observe(self, seq: Sequence, committed: Committed) -> None:
        """Tell the drafter what was committed."""
        self._guard(seq, lambda drafter: drafter.observe(seq, committed))

    def truncate(self, seq: Sequence, length: int) -> None:
        """``seq.token_ids`` was cut to ``length`` tokens: tell the drafter."""
        if seq.begun:
            self._guard(seq, lambda drafter: drafter.truncate(seq, length))

    def release(self, seq: Sequence) -> None:
        """The sequence leaves (finished, aborted or preempted)."""
        if seq.begun:
            seq.begun = False
            self._guard(seq, lambda drafter: drafter.release(seq))

    def fail(self, seq: Sequence, error: Exception) -> None:
        """The sequence's drafter broke its contract in a way that shows later (a law that is none, for example)."""
        if self._strict:
            raise _contract(self.methods[seq.method], error) from error
        self._switch_off(seq, error)

    def _guard(self, seq: Sequence, call: Callable[[Drafter], None]) -> None:
        if seq.drafter is None:
            return
        try:
            call(seq.drafter)
        except Exception as error:
            self.fail(seq, error)

    def _switch_off(self, seq: Sequence, error: Exception) -> None:
        drafter, seq.drafter = seq.drafter, None
        seq.off_reason = f"speculation off: drafter {seq.method} failed ({type(error).__name__}: {error})"
        log.warning("request %s: %s", seq.request_id, seq.off_reason)
        if drafter is not None and seq.begun:
            seq.begun = False
            try:
                drafter.release(seq)
            except Exception as again:
                log.warning("drafter %s could not release request %s: %r", seq.method, seq.request_id, again)


def _allowed(draft: Draft, constraint: Constraint, output: Seq[int]) -> Draft:
    """The nodes that a structured output may go through."""
    kept: list[int] = []
    for node in range(len(draft)):
        path = draft.path(node)
        above = len(path) < 2 or path[-2] in kept
        if above and constraint.accepts([*output, *(draft.tokens[each] for each in path)]):
            kept.append(node)
    return draft if len(kept) == len(draft) else draft.keep(kept)


def _contract(method: Method, error: Exception) -> ContractError:
    if isinstance(error, ContractError):
        return error
    return ContractError(f"drafter {method.config.method!r} failed: {error!r}")
