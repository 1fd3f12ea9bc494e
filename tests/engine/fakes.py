"""Drafters with faults and wishes, put into an engine in place of a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from outrider import LLM
from outrider.core.draft import Draft
from outrider.drafters.base import Committed, Drafter, DraftNoise, DraftSequence, Needs


class Scripted(Drafter):
    """Follows the request's prediction, as ``synthetic`` with all rates 1 would, and counts its calls.

    ``faults``: hook -> what to do in it (raise, usually). ``twist``: changes each draft that is proposed.
    """

    method = "synthetic"

    def __init__(
        self,
        faults: dict[str, Callable[[DraftSequence], None]] | None = None,
        twist: Callable[[DraftSequence, Draft], Any] | None = None,
        needs: Needs | None = None,
    ) -> None:
        self.faults, self.twist = faults or {}, twist
        if needs is not None:
            self.needs = needs
        self.calls: list[str] = []
        self.known: set[int] = set()
        self.begun: list[tuple[list[int], Any]] = []
        self.seen: list[Committed] = []

    def _call(self, hook: str, seq: DraftSequence) -> None:
        self.calls.append(hook)
        if hook in self.faults:
            self.faults[hook](seq)

    def begin(self, seq: DraftSequence, hidden: Any = None) -> None:
        self._call("begin", seq)
        self.known.add(seq.seq_id)
        self.begun.append((list(seq.token_ids), hidden))

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        return [self._draft(seq, budget) for seq, budget in zip(sequences, budgets, strict=True)]

    def _draft(self, seq: DraftSequence, budget: int) -> Draft:
        self._call("propose", seq)
        done = len(seq.token_ids) - seq.num_prompt_tokens
        draft = Draft(tokens=list(seq.prediction[done : done + budget]), source=self.method)
        return self.twist(seq, draft) if self.twist is not None else draft

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        self._call("observe", seq)
        self.seen.append(committed)

    def release(self, seq: DraftSequence) -> None:
        self.known.discard(seq.seq_id)
        self._call("release", seq)


@contextmanager
def drafting_with(llm: LLM, drafter: Drafter, *, strict: bool = False) -> Iterator[None]:
    """Let ``drafter`` serve the method that it names."""
    drafting = llm._engine.drafting
    before, was_strict = drafting.methods, drafting._strict
    drafting.methods = {**before, drafter.method: replace(before[drafter.method], drafter=drafter)}
    drafting._strict = strict
    try:
        yield
    finally:
        drafting.methods, drafting._strict = before, was_strict
