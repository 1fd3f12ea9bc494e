"""What drafters without a model share: a state per sequence that follows its tokens, and the limits of a draft."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Drafter, DraftNoise, DraftSequence
from outrider.errors import ContractError


class LookupState(Protocol):
    """What a drafter remembers of one sequence. ``truncate`` undoes ``extend`` exactly."""

    @property
    def length(self) -> int:
        """Tokens followed so far, prompt included."""
        ...

    def extend(self, tokens: Sequence[int]) -> None:
        """The sequence grew by ``tokens``."""
        ...

    def truncate(self, length: int) -> None:
        """The sequence was cut to ``length`` tokens."""
        ...


State = TypeVar("State", bound=LookupState)


class LookupDrafter(Drafter, Generic[State]):
    """Keeps one state per sequence. A subclass says how a state starts and what it drafts."""

    def __init__(self, method: str, max_model_len: int) -> None:
        self.method = method
        self._max_model_len = max_model_len
        self._states: dict[int, State] = {}
        self._begun: dict[int, int] = {}  # tokens of sequences whose state nobody has needed yet

    @abstractmethod
    def start(self, seq: DraftSequence) -> State:
        """The state of a sequence after all of its ``token_ids``."""

    @abstractmethod
    def draft(self, seq: DraftSequence, state: State, budget: int) -> Draft:
        """At most ``budget`` (>= 1) nodes for one sequence; changes neither ``seq`` nor ``state``."""

    def begin(self, seq: DraftSequence, hidden: object = None) -> None:
        """Follow a new sequence from its ``token_ids`` on. Its state is made when it is needed first."""
        self._states.pop(seq.seq_id, None)
        self._begun[seq.seq_id] = len(seq.token_ids)

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """One draft per sequence, within its budget and the target's context; all edges are delta."""
        drafts = []
        for seq, budget in zip(sequences, budgets, strict=True):
            state = self._current(seq)
            room = min(budget, self._max_model_len - state.length)
            drafts.append(self.draft(seq, state, room) if room > 0 else EMPTY)
        return drafts

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """Forget everything from token ``length`` on."""
        if seq.seq_id in self._begun:
            self._begun[seq.seq_id] = min(length, self._begun[seq.seq_id])
        else:
            state = self._state(seq)
            state.truncate(min(length, state.length))

    def release(self, seq: DraftSequence) -> None:
        """Drop the state of a sequence; one that was never begun is ignored."""
        self._states.pop(seq.seq_id, None)
        self._begun.pop(seq.seq_id, None)

    def close(self) -> None:
        """Drop all states."""
        self._states.clear()
        self._begun.clear()

    def _current(self, seq: DraftSequence) -> State:
        """The state after all tokens of the sequence. It is brought up to date when it is asked: a sequence whose
        drafts do not pay just now costs nothing."""
        state = self._state(seq)
        if state.length > len(seq.token_ids):
            raise self._missing(seq, state.length)
        if state.length < len(seq.token_ids):
            state.extend(seq.token_ids[state.length :])
        return state

    def _state(self, seq: DraftSequence) -> State:
        begun = self._begun.get(seq.seq_id)
        if begun is not None:
            if begun > len(seq.token_ids):
                raise self._missing(seq, begun)
            self._states[seq.seq_id] = self.start(seq)
            del self._begun[seq.seq_id]
        try:
            return self._states[seq.seq_id]
        except KeyError:
            raise ContractError(f"drafter {self.method!r} was never given begin for sequence {seq.seq_id}") from None

    def _missing(self, seq: DraftSequence, followed: int) -> ContractError:
        return ContractError(
            f"drafter {self.method!r} followed {followed} tokens of sequence {seq.seq_id}, which has "
            f"{len(seq.token_ids)}: a truncate is missing"
        )


def acceptance_prior(context: int, agreeing: int, hits: int) -> float:
    """P(accepted | parent accepted) of a token that followed an earlier occurrence of the last ``context`` tokens.

    ``hits`` further occurrences were looked at and ``agreeing`` of them had the same token: further trials of the same
    coin, under a beta prior whose mean grows with the length of the context. The means were measured on greedy and
    sampled answers of a small chat model to training prompts; the planner corrects them for the model at hand.
    """
    mean = _BY_CONTEXT[min(context, len(_BY_CONTEXT) - 1)]
    return (agreeing + _WEIGHT * mean) / (hits + _WEIGHT)


_BY_CONTEXT = (0.12, 0.24, 0.45, 0.56, 0.62, 0.69, 0.75, 0.79, 0.83, 0.86, 0.88, 0.89, 0.9, 0.91, 0.92, 0.93, 0.95)
_WEIGHT = 2.0
