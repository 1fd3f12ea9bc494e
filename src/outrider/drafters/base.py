"""The contract of a drafter: one required method, four optional hooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from outrider.core.draft import Draft

if TYPE_CHECKING:
    from outrider.cache.pool import BlockPool
    from outrider.core.logits import LogitsPipeline
    from outrider.heads.decoder import HeadDecoder
    from outrider.heads.stack import StackDecoder
    from outrider.target.batch import Span
    from outrider.target.model import Target
    from outrider.target.token_map import TokenMap


class DraftSequence(Protocol):
    """What a drafter may see of a sequence. It must not change any of it."""

    @property
    def seq_id(self) -> int:
        """Unique for the life of the process."""
        ...

    @property
    def token_ids(self) -> Sequence[int]:
        """Prompt and output; the last one is the root of the next draft."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt within ``token_ids``."""
        ...

    @property
    def pipeline(self) -> LogitsPipeline:
        """The request's logits pipeline: a drafter with laws processes its logits with it."""
        ...

    @property
    def prediction(self) -> Sequence[int]:
        """Tokens that the user expects as the output; empty when none was given."""
        ...

    @property
    def cache_salt(self) -> str:
        """Tenant salt: stores that outlive the request are separated by it."""
        ...

    @property
    def task(self) -> str:
        """What kind of request it is, in the user's words; empty when nothing was said."""
        ...


class DraftNoise(Protocol):
    """The random side of drafting, handed in by the engine; a drafter never asks for the verifier's name."""

    shared: bool
    merge_paths: bool  # equal siblings are to be merged and counted in ``multiplicity`` (k-SEQ)

    def candidates(self, seq: DraftSequence, scores: Tensor, position: int, count: int) -> list[int]:
        """Shared noise: ids of the ``count`` best of processed logits ``scores`` [vocab] + the target's noise for
        absolute ``position`` (at temperature 0: of ``scores`` alone), best first. Their law is delta."""
        ...

    def perturbed(self, seq: DraftSequence, scores: Tensor, position: int, tokens: Sequence[int]) -> Tensor:
        """Shared noise: ``scores`` of ``tokens`` with the target's noise for absolute ``position`` [tokens], float64
        (at temperature 0: ``scores`` alone)."""
        ...

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        """Fresh noise: one draw from ``weights`` [vocab], independent for every (position, index). Its law is iid."""
        ...

    def inner_key(self, seq: DraftSequence) -> int:
        """The noise key of an engine that writes ``seq``'s draft with a model of its own. Shared noise: the target's;
        fresh noise: one of this root alone, so that the tokens are samples independent of the target's draws."""
        ...


class TargetHandle(Protocol):
    """The target itself, for a drafter that drafts with its weights and its cache.

    Draft rows go into the slots of a sequence's root and of the positions behind it. The verify step computes the root
    and all nodes that it keeps anew in the same slots, so nothing that a drafter caches is ever committed.
    """

    @property
    def model(self) -> Target:
        """The target."""
        ...

    def narrow(self, draft_dtype: str) -> Target:
        """The copy of the target with narrower weights that a config with this ``draft_dtype`` asks for."""
        ...

    def slots(self, seq: DraftSequence, num_rows: int) -> Tensor:
        """Slots of all positions of ``seq`` in order, int32, with room for ``num_rows`` rows from the root on; for
        fewer where the cache is full. Valid while ``propose`` runs."""
        ...

    def forward(self, spans: Sequence[Span], model: Target, skip: bytes | None = None) -> Tensor:
        """Raw logits [wanted, vocab] of draft rows over the target's cache, computed by ``model`` (the target or a
        copy of it) without the sublayers of the mask ``skip``. Raises NumericsError, with the rows' slots zeroed."""
        ...


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter wants from the engine besides tokens."""

    hidden_layers: tuple[int, ...] = ()  # outputs of these target layers, for the rows of the accepted path
    row_argmax: bool = False  # the target's argmax at every row, rejected ones included
    row_topk: int = 0  # the target's top-k ids at every row, rejected ones included
    can_truncate: bool = True


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step committed to one sequence.

    ``token_ids``: the new tokens in order; the last one is the next root. ``hidden``: [rows, layers * hidden] for the
    rows whose next token is now known (``begin`` gets those of all rows so far). ``draft``: what was verified, which
    may be less than was proposed. ``row_top``: [rows, k] ids at every row of the step: the root, the nodes of
    ``draft``, then its probes; k is 1 for ``row_argmax``.
    """

    token_ids: Sequence[int]
    num_accepted: int = 0
    draft: Draft | None = None
    hidden: Tensor | None = None
    row_top: Tensor | None = None


@dataclass(frozen=True, slots=True)
class HeadSource:
    """The draft head of a head drafter, the target whose embeddings it shares, and how many positions its own cache is
    to hold for all sequences together."""

    head: HeadDecoder | StackDecoder
    target: Target
    cache_tokens: int


@dataclass(frozen=True, slots=True)
class DraftSource:
    """The model of a model drafter, and how many positions its own cache is to hold for all sequences together.

    ``token_map``: how its vocabulary is tied to the target's; None where they are one.
    """

    model: Target
    cache_tokens: int
    token_map: TokenMap | None = None


ChanceOf = Callable[[int, int, float], float]
"""``(seq_id, depth, score) -> P(accepted | parent accepted)`` of a node that its drafter gave ``score``."""


def as_scored(seq_id: int, depth: int, score: float) -> float:
    """The score, where nothing was counted."""
    return score


class Drafter(ABC):
    """Guesses tokens. ``propose`` is required; it changes no committed state."""

    method: str = ""
    needs: Needs = Needs()
    extra_tokens: int = 0  # nodes that are asked for on top of K: they cost the drafter nothing
    note: str = ""  # what was chosen for it, for `explain`
    confidence_floor: float = 0.0  # below this path probability a row costs more than it brings; 0 when K is fixed
    chance_of: ChanceOf = staticmethod(as_scored)  # what its scores have turned out to mean
    max_levels: int | None = None  # levels of its deepest draft; None where only the budget ends it
    weighs_cost: bool = False  # it asks its members for no more than pays: the planner leaves that to it

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """A sequence enters: its prompt is in the target's cache and its first token is chosen (``token_ids[-1]``)."""
        return None

    @abstractmethod
    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """One draft per sequence, of at most ``budgets[i]`` nodes each. Two calls in a row return the same."""

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Tokens were committed (``seq.token_ids`` already ends with them). Runs no forward."""
        return None

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """``seq.token_ids`` was cut to ``length`` tokens (rollback below earlier commits)."""
        return None

    def release(self, seq: DraftSequence) -> None:
        """The sequence has left (finished, aborted, or preempted); drop its state. Stores may learn from it."""
        return None

    def stop_below(self, floor: float, chance_of: ChanceOf = as_scored) -> None:
        """The next drafts end where a path is less likely than ``floor``, by what scores have turned out to mean."""
        self.confidence_floor, self.chance_of = floor, chance_of

    def seconds(self, num_sequences: int, num_tokens: int) -> float:
        """Expected time of ``propose`` for so many sequences and tokens each; 0 when it is next to nothing."""
        return 0.0

    def nodes(self, levels: int) -> int:
        """The most nodes of a draft that is so many levels deep."""
        return levels

    def more_seconds(self, num_sequences: int) -> float:
        """Expected time that one more token adds to drafts that are under way."""
        return self.seconds(num_sequences, 1)

    def kv_pools(self) -> Mapping[str, BlockPool]:
        """The caches of keys and values that it keeps, by the names of what fills them."""
        return {}

    def close(self) -> None:
        """Free what the drafter holds."""
        return None
