"""The panel: every candidate drafts behind every token of a text that the target writes by plain decoding.

It stands in the engine as one drafter. Its members meet every sequence and observe every step as they would alone, so
that each drafts from its own earlier drafts, caches and stores as in service; what they draft is taken down and none of
it is verified. Rows that a member's next drafts depend on are computed as probes: its own, and the first nodes of a
drafter that recycles what the target says at drafted rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from outrider.advise.agreement import Agreement, figures
from outrider.advise.candidates import Candidate
from outrider.core.draft import EMPTY, Draft, Probes
from outrider.core.logits import LogitsPipeline
from outrider.drafters.base import Committed, DraftNoise, DraftSequence
from outrider.drafters.members import Composite, Member
from outrider.drafters.registry import DrafterContext
from outrider.drafters.sharing import with_probes

if TYPE_CHECKING:
    from outrider.engine.step import Work

METHOD = "panel"
RECYCLED = 3  # drafted rows behind every token, against K rows behind every step of K + 1 at most


@dataclass(slots=True)
class Notes:
    """What was drafted for one sequence: ``drafts[i]`` behind the answer's token i, by the candidates' labels, and how
    the laws agree."""

    drafts: list[Mapping[str, Draft]] = field(default_factory=list)
    agreement: dict[str, Agreement] = field(default_factory=dict)


class Panel(Composite):
    """Asks all members for their longest draft at every step. ``every``: laws are compared at every so many positions
    (0: never), at temperature ``law_temperature`` where the requests are greedy."""

    weighs_cost = False

    def __init__(
        self,
        members: Sequence[Member],
        candidates: Sequence[Candidate],
        context: DrafterContext,
        *,
        every: int = 4,
        law_temperature: float = 1.0,
    ) -> None:
        super().__init__(METHOD, members, context)
        self._candidates = dict(zip((member.key for member in members), candidates, strict=True))
        self._every = every
        self._pipeline = LogitsPipeline(vocab_size=context.vocab_size, temperature=law_temperature)
        self.notes: dict[str, Notes] = {}  # by request id
        self._laws: dict[int, dict[str, Tensor]] = {}  # of this step, by seq_id and label: processed scores [vocab]

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """No draft but the members' probes; what they drafted is in ``notes``."""
        self.start(sequences, noise)
        self._laws.clear()
        for member in self.members:
            candidate = self._candidates[member.key]
            if self._every and candidate.has_law:
                self._listen(member, candidate.label, sequences, noise)
            wanted = {seq.seq_id: max(candidate.budgets) for seq in sequences}
            self.set_floor(member, len(sequences))
            self.ask(member, sequences, wanted, noise)
        return [self._taken_down(seq) for seq in sequences]

    def _taken_down(self, seq: DraftSequence) -> Draft:
        state = self.following(seq)
        drafts = {self._candidates[key].label: draft for key, draft in state.drafts.items()}
        self._notes(seq).drafts.append(drafts)
        recycles = {member.key for member in self.members if member.drafter.needs.row_topk}
        parts = {key: recycled(draft) if key in recycles else draft for key, draft in state.drafts.items()}
        return with_probes(EMPTY, parts)

    def _notes(self, seq: DraftSequence) -> Notes:
        return self.notes.setdefault(request_of(seq), Notes())

    def _listen(self, member: Member, label: str, sequences: Sequence[DraftSequence], noise: DraftNoise) -> None:
        """Have the law of the first token told, at some positions."""
        chosen = [seq for seq in sequences if (len(seq.token_ids) - seq.num_prompt_tokens) % self._every == 1]
        views = [_View(seq, self._pipeline) if seq.pipeline.greedy else seq for seq in chosen]
        ear = _Ear(noise, label, self._laws)
        self.ask(member, views, {seq.seq_id: 1 for seq in views}, ear)

    def record(self, work: Sequence[Work]) -> None:
        """After a step: compare what was heard with the target's own rows (a ``Recorder`` of the engine)."""
        for item in work:
            heard = self._laws.pop(item.seq.seq_id, None)
            if not heard or item.logits is None:
                continue
            pipeline = self._pipeline if item.seq.pipeline.greedy else item.seq.pipeline
            ours = pipeline.process(item.logits[0])
            position = len(item.seq.token_ids) - item.num_committed
            notes = self._notes(item.seq)
            for label, theirs in heard.items():
                if theirs.shape != ours.shape:  # the draft's own vocabulary
                    continue
                row = figures(ours, theirs, item.seq.noise_key, position)
                notes.agreement.setdefault(label, Agreement()).add(row)

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """As all members; the draft that they hear of is empty."""
        draft = EMPTY if committed.draft is None else committed.draft  # one without nodes may have probes
        super().observe(seq, replace(committed, draft=draft))


def recycled(draft: Draft) -> Draft:
    """``draft`` with its first nodes as probes, unless it has probes of its own."""
    if draft.probes is not None or not len(draft):
        return draft
    parents = range(-1, len(draft) - 1) if draft.parents is None else draft.parents
    return replace(draft, probes=Probes(draft.tokens[:RECYCLED], parents[:RECYCLED]))


def request_of(seq: Any) -> str:
    """The id of the request behind a sequence of the engine."""
    return str(seq.request_id)


class _View:
    """A sequence with another logits pipeline."""

    def __init__(self, seq: DraftSequence, pipeline: LogitsPipeline) -> None:
        self._seq, self.pipeline = seq, pipeline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seq, name)


class _Ear:
    """The engine's noise, which takes down the processed scores of the first drafted token."""

    shared, merge_paths = True, False

    def __init__(self, noise: DraftNoise, label: str, laws: dict[int, dict[str, Tensor]]) -> None:
        self._noise, self._label, self._laws = noise, label, laws

    def candidates(self, seq: DraftSequence, scores: Tensor, position: int, count: int) -> list[int]:
        """As the engine's."""
        if position == len(seq.token_ids):
            self._laws.setdefault(seq.seq_id, {})[self._label] = scores.clone()
        return self._noise.candidates(seq, scores, position, count)

    def perturbed(self, seq: DraftSequence, scores: Tensor, position: int, tokens: Sequence[int]) -> Tensor:
        """As the engine's."""
        return self._noise.perturbed(seq, scores, position, tokens)

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        """As the engine's."""
        return self._noise.sample(seq, weights, position, index)

    def inner_key(self, seq: DraftSequence) -> int:
        """As the engine's."""
        return self._noise.inner_key(seq)
