"""A drafter that is right as often as it is told to be: for tests, for planning, and for what-if measurements.

It knows the target's next tokens from an oracle: a function, or else the request's ``prediction``, which then must be
the text that the target produces (take it from a run without speculation). Where the oracle knows nothing the proposed
tokens are arbitrary, so nearly all of them are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Drafter, DraftNoise, DraftSequence
from outrider.drafters.registry import DrafterContext
from outrider.errors import ConfigError

Oracle = Callable[[Sequence[int]], Sequence[int]]
_MASK = (1 << 64) - 1
_HASHED_TOKENS = 4  # the last tokens that tell positions of different sequences apart


class SyntheticDrafter(Drafter):
    """Token i of a draft is the target's next one with probability ``rates[i]``, else a wrong one.

    ``rates``: P(position i accepted | all before accepted), in [0, 1]; their number is the longest draft.
    ``continuation``: tokens -> the target's next tokens, as many as it knows. The coin is a hash of ``seed``, the
    length and last tokens of the sequence, and i. Raises ConfigError for rates outside [0, 1].
    """

    method = "synthetic"

    def __init__(
        self,
        rates: Sequence[float],
        vocab_size: int,
        max_model_len: int,
        eos_ids: frozenset[int] = frozenset(),
        continuation: Oracle | None = None,
        seed: int = 0,
    ) -> None:
        if not rates or not all(0.0 <= rate <= 1.0 for rate in rates):
            raise ConfigError(f"synthetic_acceptance_rates: {list(rates)} must be one or more numbers from 0 to 1")
        self._rates = list(rates)
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._eos_ids = eos_ids
        self._continuation = continuation
        self._seed = seed

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """One chain per sequence, at most as long as the list of rates; all edges are delta."""
        return [self._draft(seq, budget) for seq, budget in zip(sequences, budgets, strict=True)]

    def _draft(self, seq: DraftSequence, budget: int) -> Draft:
        length = len(seq.token_ids)
        size = min(budget, len(self._rates), self._max_model_len - length)
        if size <= 0:
            return EMPTY
        key = self._seed
        for value in (length, *seq.token_ids[-_HASHED_TOKENS:]):
            key = _mix(key ^ value)
        future = self._future(seq)
        chain: list[int] = []
        for index, rate in enumerate(self._rates[:size]):
            coin = _mix(key + index)
            right = future[index] if index < len(future) else None
            chain.append(self._token(right, coin, rate))
            if chain[-1] in self._eos_ids:
                break
        return Draft(tokens=chain, scores=self._rates[: len(chain)], source=self.method)

    def _future(self, seq: DraftSequence) -> Sequence[int]:
        if self._continuation is not None:
            return self._continuation(seq.token_ids)
        return seq.prediction[len(seq.token_ids) - seq.num_prompt_tokens :]

    def _token(self, right: int | None, coin: int, rate: float) -> int:
        other = _mix(coin)
        if right is None:
            return other % self._vocab_size
        if coin < rate * (_MASK + 1):
            return right
        return (right + 1 + other % (self._vocab_size - 1)) % self._vocab_size


def _mix(value: int) -> int:
    """64 well-mixed bits: the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def build(config: SpeculativeConfig, context: DrafterContext) -> SyntheticDrafter:
    """The drafter of method ``synthetic``; the oracle is each request's prediction."""
    return SyntheticDrafter(
        config.synthetic_acceptance_rates or (),
        vocab_size=context.vocab_size,
        max_model_len=context.max_model_len,
        eos_ids=context.eos_ids,
        seed=context.seed,
    )
