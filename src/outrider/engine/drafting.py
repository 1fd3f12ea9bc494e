"""Drafting for a batch: which drafter serves which sequence, budgets, trimming, and what happens when one fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass

from torch import Tensor

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.core.verifiers.base import Verifier
from outrider.drafters.base import Committed, Drafter
from outrider.drafters.registry import REGISTRY
from outrider.engine.laws import FreshNoise, SharedNoise
from outrider.engine.planner import Planner
from outrider.engine.sequence import Sequence
from outrider.errors import ContractError

log = logging.getLogger(__name__)
_FAILURES = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Method:
    """A loaded method: its drafter, its rule, and how many tokens to ask for when nobody fixed K."""

    config: SpeculativeConfig
    drafter: Drafter
    verifier: Verifier

    @property
    def default_tokens(self) -> int:
        """The budget for the planner to cut down."""
        if self.config.tree:
            width, total = 1, 0
            for count in self.config.tree:
                width *= count
                total += width
            return total
        return REGISTRY[self.config.method].default_tokens * self.config.num_paths


class Drafting:
    """All loaded methods. ``strict``: a failing drafter is an error; else it is switched off for its request."""

    def __init__(
        self, methods: Mapping[str, Method], planner: Planner, vocab_size: int, max_model_len: int, strict: bool
    ) -> None:
        self.methods, self.planner, self._strict = methods, planner, strict
        self._vocab_size, self._max_model_len = vocab_size, max_model_len

    def propose(
        self, seqs: Seq[Sequence], base_rows: int
    ) -> tuple[list[Draft], list[Draft], dict[int, float]]:
        """For each sequence the draft to verify, and the draft as proposed; and seconds of drafting by ``seq_id``."""
        proposed: dict[int, Draft] = {}
        seconds: dict[int, float] = {}
        for name, method in self.methods.items():
            group = [seq for seq in seqs if seq.method == name and seq.drafter is not None and seq.begun]
            if group:
                begin = time.perf_counter()
                proposed.update(self._ask(method, group))
                share = (time.perf_counter() - begin) / len(group)
                seconds.update({seq.seq_id: share for seq in group})
        full = [proposed.get(seq.seq_id, EMPTY) for seq in seqs]
        return self.planner.select(seqs, full, base_rows), full, seconds

    def _ask(self, method: Method, group: Seq[Sequence]) -> dict[int, Draft]:
        budgets = {seq.seq_id: self._budget(method, seq, len(group)) for seq in group}
        group = [seq for seq in group if budgets[seq.seq_id] > 0]
        if not group:
            return {}
        rule = method.verifier
        noise = SharedNoise() if rule.shared_noise else FreshNoise("paths" in rule.shapes and "tree" not in rule.shapes)
        automatic = all(seq.fixed_tokens is None for seq in group)
        method.drafter.confidence_floor = self.planner.floor(method.drafter, len(group)) if automatic else 0.0
        try:
            drafts = method.drafter.propose(group, [budgets[seq.seq_id] for seq in group], noise)
            for seq, draft in zip(group, drafts, strict=True):
                draft.check(self._vocab_size, budgets[seq.seq_id])
        except _FAILURES as error:
            self._switch_off(group, error)
            return {}
        return {seq.seq_id: self._shallow(seq, draft) for seq, draft in zip(group, drafts, strict=True)}

    def _budget(self, method: Method, seq: Sequence, num_sequences: int) -> int:
        return min(
            self.planner.budget(seq, method.drafter, method.default_tokens, num_sequences),
            self._max_depth(seq) * (method.config.num_paths if not method.config.tree else method.default_tokens),
        )

    def _max_depth(self, seq: Sequence) -> int:
        """A draft of depth d commits up to d + 1 tokens: no more than are left."""
        return max(0, seq.tokens_left(self._max_model_len) - 1)

    def _shallow(self, seq: Sequence, draft: Draft) -> Draft:
        limit = self._max_depth(seq)
        depths = draft.depths()
        if not depths or max(depths) <= limit:
            return draft
        return draft.keep([node for node, depth in enumerate(depths) if depth <= limit])

    def begin(self, seq: Sequence, hidden: Tensor | None) -> None:
        """The sequence has its first token (or was recomputed): its drafter meets it."""
        if seq.drafter is not None and not seq.begun:
            seq.begun = True
            self._guard(seq, lambda drafter: drafter.begin(seq, hidden))

    def observe(self, seq: Sequence, committed: Committed) -> None:
        """Tell the drafter what was committed."""
        self._guard(seq, lambda drafter: drafter.observe(seq, committed))

    def release(self, seq: Sequence) -> None:
        """The sequence leaves (finished, aborted or preempted)."""
        if seq.begun:
            seq.begun = False
            self._guard(seq, lambda drafter: drafter.release(seq))

    def _guard(self, seq: Sequence, call) -> None:  # type: ignore[no-untyped-def]
        if seq.drafter is None:
            return
        try:
            call(seq.drafter)
        except _FAILURES as error:
            self._switch_off([seq], error)

    def _switch_off(self, group: Seq[Sequence], error: Exception) -> None:
        if self._strict:
            raise error if isinstance(error, ContractError) else ContractError(f"drafter failed: {error!r}") from error
        for seq in group:
            drafter, seq.drafter = seq.drafter, None
            seq.off_reason = f"speculation off: drafter {seq.method} failed ({error!r})"
            log.warning("request %s: %s", seq.request_id, seq.off_reason)
            if drafter is not None and seq.begun:
                seq.begun = False
                try:
                    drafter.release(seq)
                except _FAILURES as again:
                    log.warning("drafter %s could not release request %s: %r", seq.method, seq.request_id, again)
