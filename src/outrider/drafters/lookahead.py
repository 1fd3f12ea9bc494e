"""Lookahead decoding: the target refines guesses of its own future in spare rows, and its n-grams are verified later.

Source: arXiv 2402.02057. Each forward holds the candidates and, as probes, a window of guesses (``jacobi``). The
n-grams that the window's columns make go into a pool under their first token; the pool's n-grams under the root are
the draft, merged in a trie. The window is always refined by argmax, and all edges are delta: it works at every
temperature. Window and pool belong to one sequence and are hints: they change proposals only.

Probe rows cost time. Where K is fixed they are always sent. Else they are sent while they pay: an account holds the
accepted tokens that the window brought, less the tokens that its rows could have brought otherwise, and a small
allowance keeps trying.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Committed, DraftNoise, DraftSequence, Needs
from outrider.drafters.estimates import Estimates, NoEstimates
from outrider.drafters.jacobi import Window
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.phrases import PhrasePool, merge, until
from outrider.drafters.registry import DrafterContext

_WINDOW, _TEXT = "lookahead", "lookahead:text"  # what a draft's node came from
_LEAST = 1e-9  # a price of 0 says that the user fixed K
_ALLOWANCE = 0.01  # tokens for each committed one that may be spent on probes that bring nothing


@dataclass(frozen=True, slots=True)
class Sizes:
    """W columns, N tokens an n-gram (its first one included), G n-grams verified at a time."""

    window: int
    ngram: int
    guesses: int


class LookaheadState:
    """One sequence: its window, and its pool fed by the window and, if ``from_text``, by its own n-grams."""

    def __init__(self, sizes: Sizes, from_text: bool, ends: frozenset[int]) -> None:
        self._sizes, self._from_text, self.ends = sizes, from_text, ends
        self.pool = PhrasePool(sizes.guesses)
        self.tokens: list[int] = []
        self.window: Window | None = None

    @property
    def length(self) -> int:
        """Tokens followed."""
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append ``tokens``."""
        start = max(0, len(self.tokens) - self._sizes.ngram + 1)
        self.tokens.extend(tokens)
        if self._from_text:
            for first in range(start, len(self.tokens) - self._sizes.ngram + 1):
                self.put(self.tokens[first : first + self._sizes.ngram], _TEXT)
        if self.window is None:
            self.window = Window(self._sizes.window, self._sizes.ngram - 1, self.fill)

    def put(self, ngram: Sequence[int], origin: str) -> None:
        """Into the pool with an n-gram, unless it begins with an end of sequence."""
        if ngram[0] not in self.ends:
            self.pool.add(ngram[0], until(ngram[1:], self.ends), origin)

    def truncate(self, length: int) -> None:
        """Back to ``length`` tokens; the hints stay."""
        del self.tokens[length:]

    def fill(self, column: int) -> int:
        """A token of the text in place of a guess; no end of sequence, which would spoil the rows below it."""
        count = len(self.tokens)
        at = ((count + column) * 2654435761 >> 8) % count
        for shift in range(min(count, 8)):
            if (token := self.tokens[at - shift]) not in self.ends:
                return token
        return next(token for token in range(len(self.ends) + 1) if token not in self.ends)


class Lookahead(LookupDrafter[LookaheadState]):
    """Lookahead decoding with the target's probe rows."""

    needs = Needs(row_argmax=True)

    def __init__(
        self,
        sizes: Sizes,
        from_prompt: bool,
        eos_ids: frozenset[int],
        max_model_len: int,
        estimates: Estimates | None = None,
    ) -> None:
        super().__init__(_WINDOW, max_model_len)
        self._sizes, self._from_prompt, self._eos_ids = sizes, from_prompt, eos_ids
        self._estimates = estimates or NoEstimates()
        self._pace = 1.0  # committed tokens of a step, lately
        self._credit = 0.0  # tokens that the window brought, less what its rows cost
        self._probing = False
        self._price = 0.0  # of one probe row, in tokens

    def start(self, seq: DraftSequence) -> LookaheadState:
        """A window filled from the text; with ``lookahead_pool_from_prompt``, a pool of the text's n-grams."""
        state = LookaheadState(self._sizes, self._from_prompt, self._eos_ids)
        state.extend(seq.token_ids)
        return state

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """The pool's n-grams under each root, and the window as probes while it pays."""
        fixed = self.confidence_floor == 0.0
        self._price = 0.0 if fixed else max(_LEAST, self._pace * self._share_of_step(len(sequences)))
        return super().propose(sequences, budgets, noise)

    def _share_of_step(self, num_sequences: int) -> float:
        """What a probe row adds to the time of a step, when all of a window's stand behind its n-grams."""
        window = self._sizes.window * (self._sizes.ngram - 1)
        behind = num_sequences * (1 + self._sizes.guesses)
        without = self._estimates.step_seconds(behind)
        return (self._estimates.step_seconds(behind + num_sequences * window) / without - 1.0) / window

    def draft(self, seq: DraftSequence, state: LookaheadState, budget: int) -> Draft:
        """At most ``budget`` nodes of n-grams, and probes beside them."""
        branches = merge(state.pool.after(seq.token_ids[-1]), budget)
        window = state.window if self._probes_pay() else None
        if not branches.tokens and window is None:
            return EMPTY
        scores = [
            _score(rank, count, parent)
            for rank, count, parent in zip(branches.ranks, branches.counts, branches.parents, strict=True)
        ]
        return Draft(
            tokens=branches.tokens,
            parents=branches.parents,
            scores=scores,
            probes=None if window is None else window.probes(),
            source=self.method,
            sources=branches.origins,
        )

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Refine the window by the argmax at the probes, and put its n-grams into the pool."""
        state = self._state(seq)
        moved = len(seq.token_ids) - state.length
        draft = EMPTY if committed.draft is None else committed.draft
        self._account(draft, committed)
        best: list[int] | None = None
        if draft.probes is not None and committed.row_top is not None:
            best = committed.row_top[-state.window.width :, 0].tolist()  # type: ignore[union-attr]
        window = state.window
        assert window is not None
        if best is not None:
            for first, rest in window.ngrams(best):
                state.put([first, *rest], _WINDOW)
        state.extend(seq.token_ids[state.length :])
        if best is not None:
            best = [state.fill(column) if token in self._eos_ids else token for column, token in enumerate(best)]
        window.advance(best, moved, state.fill)

    def _probes_pay(self) -> bool:
        return not self._price or self._probing

    def _account(self, draft: Draft, committed: Committed) -> None:
        """Book a step. The window is switched on when the account can pay for an n-gram, and off when it is empty."""
        self._pace += 0.05 * (len(committed.token_ids) - self._pace)
        rows = 0 if draft.probes is None else len(draft.probes.tokens)
        path = draft.follow(committed.token_ids[: committed.num_accepted])
        brought = sum(draft.source_of(node) == _WINDOW for node in path)
        full = self._price * self._sizes.window * (self._sizes.ngram - 1) * self._sizes.ngram
        self._credit += brought + _ALLOWANCE * len(committed.token_ids) - self._price * rows
        self._credit = min(self._credit, 2.0 * full)
        self._probing = self._credit > (0.0 if self._probing else full)


def _score(rank: int, count: int, parent: int) -> float:
    """P(accepted | parent accepted) of a node of the trie, before the planner has measured it."""
    if parent >= 0:
        return 0.55 if rank == 0 else 0.45
    return min(0.9, _FIRST[min(rank, len(_FIRST) - 1)] * (1.0 + 0.2 * (count - 1)))


_FIRST = (0.35, 0.15, 0.1, 0.06)


def build(config: SpeculativeConfig, context: DrafterContext) -> Lookahead:
    """The drafter of method ``lookahead``."""
    sizes = Sizes(config.lookahead_window, config.lookahead_ngram, config.lookahead_guesses)
    return Lookahead(
        sizes, config.lookahead_pool_from_prompt, context.eos_ids, context.max_model_len, context.estimates
    )
