"""Exact laws of emitted text: the real rules replayed over every branch of their random choices.

Randomness is a tape. Every draw is named, and its name is turned into a key; a key stands for one uniform number, known
only as an interval. A draw by inverse CDF narrows the interval of its key, so a fresh key gives the plain law and a key
that is used again gives exactly the dependence that the reuse causes. Each run takes one branch at every draw.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from outrider.core.draft import Draft, Iid, Law, WithoutReplacement
from outrider.core.verifiers.base import Verifier

Text = tuple[int, ...]
Result = TypeVar("Result")
VOCAB = 4
CUT = 1e-16  # branches of less relative weight are rounding, and are dropped


@dataclass
class Tape:
    """One run: the branches to take first, those taken, and the branches that were left for other runs."""

    script: Sequence[int]
    taken: list[int] = field(default_factory=list)
    left: list[list[int]] = field(default_factory=list)
    probability: float = 1.0

    def choose(self, weights: Sequence[float]) -> int:
        """The branch of this run among ``weights``, which sum to one."""
        at = len(self.taken)
        if at < len(self.script):
            option = self.script[at]
        else:
            option, *others = [branch for branch, weight in enumerate(weights) if weight > CUT]
            self.left += [[*self.taken, other] for other in others]
        self.taken.append(option)
        self.probability *= weights[option]
        return option


def branches(program: Callable[[Tape], Result]) -> Iterator[tuple[float, Result]]:
    """(probability, result) of every run of ``program``."""
    scripts: list[list[int]] = [[]]
    while scripts:
        tape = Tape(scripts.pop())
        result = program(tape)
        scripts += tape.left
        yield tape.probability, result


@dataclass(frozen=True)
class Name:
    """What a draw is for. ``position`` is the absolute position of the token that it decides about."""

    purpose: str
    root: int
    node: int
    position: int


Key = Callable[[Name], Hashable]


def right_key(name: Name) -> Hashable:
    """The engine's key: purpose, root position and node; of the target's own sample, the position alone."""
    return name.position if name.purpose == "target" else (name.purpose, name.root, name.node)


class Last(int):
    """The token of a final draw, whose branches are summed afterwards instead of being run one by one."""

    law: list[float]


@dataclass
class Draws:
    """Draws of one run, over all its steps: ``Randomness`` of a rule, and the draws of drafter and target."""

    tape: Tape
    key: Key = right_key
    root: int = 0
    depths: Sequence[int] = ()
    open_end: bool = False  # this step is the last one: leave its final draw open
    ends: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    repeated: set[Hashable] = field(default_factory=set)

    def draw(self, weights: Sequence[float], name: Name) -> int:
        """The index of ``weights`` that the uniform number of ``name`` falls on."""
        key = self.key(name)
        if key in self.ends:
            self.repeated.add(key)
        low, high = self.ends.get(key, (0.0, 1.0))
        total = sum(weights)
        edges = [0.0, *(part / total for part in accumulate(weights))]
        edges[-1] = 1.0
        parts = [max(0.0, min(b, high) - max(a, low)) / (high - low) for a, b in pairwise(edges)]
        option = self.tape.choose(parts)
        self.ends[key] = (max(low, edges[option]), min(high, edges[option + 1]))
        return option

    def _name(self, purpose: str, node: int, after: bool) -> Name:
        depth = self.depths[node] if node >= 0 else 0
        return Name(purpose, self.root, node, self.root + depth + after)

    def categorical(self, weights: Tensor, purpose: str, node: int) -> int:
        """As in ``Randomness``."""
        values = weights.tolist()
        if self.open_end and purpose in ("bonus", "recovered") and self.key is right_key:
            last = Last(0)
            last.law = [value / sum(values) for value in values]
            return last
        return self.draw(values, self._name(purpose, node, after=True))

    def bernoulli(self, probability: float, purpose: str, node: int) -> bool:
        """As in ``Randomness``."""
        chance = min(1.0, probability)
        assert chance >= 0.0
        return self.draw([chance, 1.0 - chance], self._name(purpose, node, after=False)) == 0

    def propose(self, weights: Tensor, depth: int, node: int, purpose: str = "draft") -> int:
        """A drafter's draw of ``node`` at ``depth`` (a child of the root has depth 1)."""
        return self.draw(weights.tolist(), Name(purpose, self.root, node, self.root + depth))


@dataclass
class Model:
    """Random laws of the next token, each a function of all tokens before it. Model 0 is the target."""

    seed: int
    zeros_p: bool = False
    zeros_q: int = 0  # tokens without draft probability at every prefix
    sharpness: float = 1.0
    cache: dict[tuple[int, Text], Tensor] = field(default_factory=dict)

    def law(self, who: int, prefix: Text) -> Tensor:
        """The law [VOCAB] of model ``who`` after ``prefix``, float64."""
        key = (who, prefix)
        if key not in self.cache:
            rng = np.random.default_rng([self.seed, who, len(prefix), *prefix])
            common = np.random.default_rng([self.seed, 99, len(prefix), *prefix]).normal(size=VOCAB)
            weights = np.exp(self.sharpness * (common + rng.normal(size=VOCAB)))
            dead = (self.seed + len(prefix)) % 2 if who == 0 and self.zeros_p else self.zeros_q if who else 0
            weights[rng.permutation(VOCAB)[:dead]] = 0.0
            self.cache[key] = torch.tensor(weights / weights.sum(), dtype=torch.float64)
        return self.cache[key]

    def p(self, prefix: Text) -> Tensor:
        """The target's law."""
        return self.law(0, prefix)


def models(count: int = 12, zeros_q: int = 0) -> list[Model]:
    """Random models, a third of them with zeros in p, a third with (more) zeros in q."""
    return [
        Model(seed, seed % 3 == 1, min(2, zeros_q + (seed % 3 == 2)), sharpness=(0.5, 1.0, 1.5)[seed % 4 % 3])
        for seed in range(count)
    ]


Drafter = Callable[[Model, Text, Draws], Draft]


class LazyIid(Iid):
    """An iid edge whose law is looked up when the rule looks at it."""

    def __init__(self, q: Callable[[], Tensor]) -> None:
        object.__setattr__(self, "_of", q)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "_of")() if name == "q" else object.__getattribute__(self, name)


class LazyWithoutReplacement(WithoutReplacement):
    """An edge without replacement whose law is looked up when the rule looks at it."""

    def __init__(self, q: Callable[[], Tensor]) -> None:
        object.__setattr__(self, "_of", q)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "_of")() if name == "q" else object.__getattribute__(self, name)


class LazyTokens(Sequence[int]):
    """Tokens that are drawn when somebody looks: in law the same, and branches nobody sees are never run."""

    def __init__(self, size: int, make: Callable[[int], int]) -> None:
        self._known: dict[int, int] = {}
        self._size, self._make = size, make

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, node: int) -> int:  # type: ignore[override]
        if not 0 <= node < self._size:
            raise IndexError(node)
        if node not in self._known:
            self._known[node] = self._make(node)
        return self._known[node]


@dataclass
class ToyLaws:
    """``TargetLaws`` of one draft."""

    model: Model
    context: Text
    draft: Draft
    draws: Draws

    def _prefix(self, node: int) -> Text:
        return self.context + tuple(self.draft.tokens[n] for n in self.draft.path(node))

    def probs(self, node: int) -> Tensor:
        """p after ``node``."""
        return self.model.p(self._prefix(node))

    def draw(self, node: int) -> int:
        """The target's own sample after ``node``."""
        position = self.draws.root + (self.draws.depths[node] if node >= 0 else 0) + 1
        return self.draws.draw(self.probs(node).tolist(), Name("target", self.draws.root, node, position))


@dataclass
class Outcome:
    """The law of the text after the steps, and the mean number of accepted draft tokens of the last step."""

    weights: dict[Text, float]
    accepted: float
    runs: int
    repeated: set[Hashable]


def run_steps(rule: Verifier, drafters: Sequence[Drafter], model: Model, key: Key = right_key) -> Outcome:
    """Run one step for each of ``drafters``, the second one's draft rooted at the token that the first one emitted."""

    def program(tape: Tape) -> tuple[Text, int, int, set[Hashable]]:
        draws, accepted, last = Draws(tape, key), 0, -1
        text: Text = ()
        for index, drafter in enumerate(drafters):
            draws.root, draws.open_end = len(text) + 1000, index == len(drafters) - 1
            draft = drafter(model, text, draws)
            draws.depths = draft.depths()
            walk = rule.walk(draft, ToyLaws(model, text, draft, draws), draws)
            text = (*text, *(draft.tokens[node] for node in walk.path))
            accepted, last = len(walk.path), walk.next_token
            if not isinstance(last, Last):
                text = (*text, last)
        return text, accepted, last, draws.repeated

    weights: dict[Text, float] = defaultdict(float)
    accepted, runs = 0.0, 0
    repeated: set[Hashable] = set()
    for probability, (text, count, last, twice) in branches(program):
        accepted += probability * count
        runs += 1
        repeated |= twice
        if isinstance(last, Last):
            for token, chance in enumerate(last.law):
                weights[(*text, token)] += probability * chance
        else:
            weights[text] += probability
    return Outcome(weights, accepted, runs, repeated)


def tv(outcome: Outcome, model: Model) -> float:
    """Total variation between the emitted text, extended to one length by the target, and the target's own text."""
    length = max(len(text) for text in outcome.weights)
    emitted: dict[Text, float] = dict(outcome.weights)
    wanted: dict[Text, float] = {(): 1.0}
    for size in range(length):
        emitted = _extended(emitted, size, model)
        wanted = _extended(wanted, size, model)
    return 0.5 * sum(abs(emitted.get(text, 0.0) - wanted.get(text, 0.0)) for text in {*emitted, *wanted})


def _extended(weights: dict[Text, float], size: int, model: Model) -> dict[Text, float]:
    out = {text: weight for text, weight in weights.items() if len(text) != size}
    for text, weight in weights.items():
        if len(text) == size:
            for token, chance in enumerate(model.p(text).tolist()):
                out[(*text, token)] = out.get((*text, token), 0.0) + weight * chance
    return out


def edge(kind: type[Law], q: Callable[[], Tensor]) -> Law:
    """A lazy edge of ``kind`` (Iid or WithoutReplacement)."""
    return LazyIid(q) if kind is Iid else LazyWithoutReplacement(q)
