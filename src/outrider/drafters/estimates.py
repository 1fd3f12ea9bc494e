"""What the engine knows about acceptance and time, as drafters that are made of drafters may ask it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from outrider.core.draft import Draft

if TYPE_CHECKING:
    from outrider.drafters.base import Drafter

UNKNOWN = 0.7  # acceptance of a model drafter's token before anything was measured
MARGIN = 0.01  # tokens of a sequence's step that drafting must promise over going without


class Estimates(Protocol):
    """Calibrated acceptance and the cost of a step. ``source``: a drafter's name as ``label_of`` writes it."""

    def chance(self, seq_id: int, source: str, depth: int, score: float) -> float:
        """P(node accepted | parent accepted) of a node at ``depth`` (1: child of the root) that was given ``score``."""
        ...

    def at_depth(self, seq_id: int, source: str, depth: int, prior: float) -> float:
        """The same before anything is drafted; ``prior``: what holds while nothing was measured."""
        ...

    def step_seconds(self, num_rows: int) -> float:
        """Time of a step of the target with ``num_rows`` rows, without drafting."""
        ...

    def going_rate(self, num_sequences: int) -> float:
        """What a second is worth: tokens that steps of so many sequences have made per second of late."""
        ...

    def floor(self, drafter: Drafter, num_sequences: int) -> float:
        """The path probability below which a token of ``drafter`` costs more than it brings; over 0."""
        ...

    def learn(self, seq_id: int, draft: Draft, emitted: Sequence[int]) -> None:
        """Learn from a draft that was not verified what the target did where it starts."""
        ...


class NoEstimates:
    """What holds without an engine: scores as they are, and rows that cost nothing."""

    def chance(self, seq_id: int, source: str, depth: int, score: float) -> float:
        """The score."""
        return score

    def at_depth(self, seq_id: int, source: str, depth: int, prior: float) -> float:
        """The prior."""
        return prior

    def step_seconds(self, num_rows: int) -> float:
        """One unit a step."""
        return 1.0

    def going_rate(self, num_sequences: int) -> float:
        """Time is worth nothing."""
        return 0.0

    def floor(self, drafter: Drafter, num_sequences: int) -> float:
        """None."""
        return 0.0

    def learn(self, seq_id: int, draft: Draft, emitted: Sequence[int]) -> None:
        """Nothing."""


@lru_cache(maxsize=1024)
def within(scope: str, source: str) -> str:
    """``source`` as seen from outside ``scope``: ``a+b`` (both proposed the node) in ``x`` is ``x/a+x/b``."""
    return "+".join(f"{scope}/{part}" for part in source.split("+")) if scope else source


def named(name: str, draft: Draft, node: int) -> str:
    """The drafter behind ``node`` of a draft whose drafter is called ``name``. ``x:part`` is a part of drafter x that
    tells nothing about the rest of its drafts."""
    if draft.sources is None:
        return name
    part = draft.sources[node]
    own = part == draft.source or part.startswith(f"{draft.source}:")
    return name + part[len(draft.source) :] if own else within(name, part)


def label_of(draft: Draft, node: int) -> str:
    """The full name of the drafter behind ``node``, that calibration counts under."""
    return named(draft.source, draft, node)


@lru_cache(maxsize=1024)
def everyone_in(label: str) -> tuple[str, ...]:
    """Every drafter that had a part in a node: of ``x/a+x/b`` these are x/a, x/b and x."""
    found: dict[str, None] = {}
    for part in label.split("+"):
        steps = part.split("/")
        found.update(("/".join(steps[:end]), None) for end in range(len(steps), 0, -1))
    return tuple(found)


def path_chances(estimates: Estimates, seq_id: int, draft: Draft, scope: str = "") -> list[float]:
    """P(accepted) of every node of ``draft``, its ancestors included. ``scope``: whose member made it."""
    out: list[float] = []
    for node, depth in enumerate(draft.depths()):
        score = 0.5 if draft.scores is None else draft.scores[node]
        own = estimates.chance(seq_id, within(scope, label_of(draft, node)), depth, score)
        parent = draft.parent(node)
        out.append(own if parent < 0 else own * out[parent])
    return out


@dataclass(frozen=True, slots=True)
class Worth:
    """What a draft promises. ``length``: its tokens; ``expected``: committed tokens of the step for one sequence;
    ``rate``: tokens per second, of all sequences if they did alike; ``gain``: their tokens less what the step's time is
    worth at the going rate."""

    length: int
    expected: float
    rate: float
    gain: float

    @property
    def rows(self) -> int:
        """Rows that the step verifies for one sequence."""
        return 1 + self.length


def _worth(estimates: Estimates, num_sequences: int, length: int, expected: float, drafting: float = 0.0) -> Worth:
    """Of a draft of ``length`` tokens a sequence, which takes ``drafting`` seconds."""
    seconds = drafting + estimates.step_seconds(num_sequences * (1 + length))
    tokens = num_sequences * expected
    return Worth(length, expected, tokens / seconds, tokens - estimates.going_rate(num_sequences) * seconds)


def plain(estimates: Estimates, num_sequences: int) -> Worth:
    """A step without a draft."""
    return _worth(estimates, num_sequences, 0, 1.0)


def worth_of(estimates: Estimates, chances: Sequence[float], num_sequences: int, whole: bool = False) -> Worth:
    """The best prefix of a draft that is there already, or ``whole`` of it; ``chances`` as of ``path_chances``."""
    if whole:
        return _worth(estimates, num_sequences, len(chances), 1.0 + sum(chances))
    best, expected = plain(estimates, num_sequences), 1.0
    for count, chance in enumerate(sorted(chances, reverse=True), start=1):
        expected += chance
        worth = _worth(estimates, num_sequences, count, expected)
        if worth.gain > best.gain:
            best = worth
    return best


def worth_asking(
    estimates: Estimates,
    drafter: Drafter,
    source: str,
    seq_id: int,
    num_sequences: int,
    levels: Sequence[int],
    beside: Sequence[float] = (),
    timed: bool = True,
) -> Worth:
    """What a draft of the best of ``levels`` (ascending) of a drafter that takes time promises, before it is asked.

    ``beside``: conditional acceptance by depth of a draft that is there already and will be joined with this one;
    ``timed`` False leaves the drafter's time out.
    """
    best: Worth | None = None
    expected, reached, depth = 1.0, 1.0, 0
    for level in levels:
        while depth < level:
            chance = estimates.at_depth(seq_id, source, depth + 1, UNKNOWN)
            reached *= max(chance, beside[depth]) if depth < len(beside) else chance
            expected, depth = expected + reached, depth + 1
        length = drafter.nodes(level)
        drafting = drafter.seconds(num_sequences, length) if timed else 0.0
        worth = _worth(estimates, num_sequences, length, expected, drafting)
        if best is None or worth.gain > best.gain:
            best = worth
    return best or plain(estimates, num_sequences)


def open_ended(drafter: Drafter, length: int, levels: Sequence[int]) -> int:
    """How many tokens to ask a drafter for whose draft of ``length`` pays, ``levels`` being what it may be asked for.

    A chain under a confidence floor ends by itself where its next token would not pay, and knows better than any
    average when that is: it may go on to the last level.
    """
    if length == 0 or not levels or drafter.nodes(levels[-1]) != levels[-1]:
        return length
    return max(length, levels[-1])
