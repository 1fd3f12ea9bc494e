"""What drafters would have proposed, and how much of it the target takes: recorded, or drawn from rates.

An opportunity is one position of one answer: the draft that the drafter makes there when rows cost next to nothing, and
the path of nodes that the target's text goes along. What the planner then leaves out cuts both.
"""

from __future__ import annotations

import bisect
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from outrider.core.draft import EMPTY, Draft
from outrider.errors import ConfigError, why_unread
from outrider.theory.expected import check_rates

FORMAT = "outrider drafts 1"


@dataclass(frozen=True, slots=True)
class Opportunity:
    """``draft``: with tokens 1, 2, 3 ... for its nodes; ``path``: the nodes that the target follows."""

    draft: Draft = EMPTY
    path: Sequence[int] = ()


NOTHING = Opportunity()


class Acceptance(Protocol):
    """Opportunities of one method, by request and position. The same call gives the same answer."""

    def at(self, profile: int, seq_id: int, position: int) -> Opportunity:
        """``profile``: which recorded request it is like; ``position``: tokens of its output that are there already."""
        ...


def draft_of(scores: Sequence[float], parents: Sequence[int] | None, method: str) -> Draft:
    """A draft whose node i has the token i + 1."""
    return Draft(tokens=range(1, len(scores) + 1), parents=parents, scores=scores, source=method)


class Rates:
    """Chains that are accepted by ``rates``, conditional acceptances by position, of which the last one repeats; as far
    as ``length``. What the drafter says of its tokens is the rate, so that a planner cannot tell good drafts from bad.
    Raises ConfigError for rates that are no probabilities."""

    def __init__(self, method: str, rates: Sequence[float], length: int = 16, seed: int = 0) -> None:
        check_rates(rates, f"rates of {method}")
        if not rates:
            raise ConfigError(f"rates of {method}: give at least one")
        self._rates = [*rates[:length], *[rates[-1]] * (length - len(rates))]
        self._draft, self._seed = draft_of(self._rates, None, method), seed

    def at(self, profile: int, seq_id: int, position: int) -> Opportunity:
        """A chain of the full length, and a coin for each of its tokens."""
        coin = random.Random(f"{self._seed} {seq_id} {position}")
        taken = 0
        while taken < len(self._rates) and coin.random() < self._rates[taken]:
            taken += 1
        return Opportunity(self._draft, range(taken))


class Recorded:
    """Drafts that were recorded. ``requests``: of each, positions in order and the opportunity at each.

    A position that was passed over, because it lay inside of what was accepted, has what was left of that draft there;
    where nothing was left, the next opportunity.
    """

    def __init__(self, requests: Sequence[tuple[Sequence[int], Sequence[Opportunity]]]) -> None:
        self._requests = requests

    def at(self, profile: int, seq_id: int, position: int) -> Opportunity:
        """Of the recorded request."""
        positions, opportunities = self._requests[profile % len(self._requests)]
        at = bisect.bisect_left(positions, position)
        if at < len(positions) and positions[at] == position:
            return opportunities[at]
        if at > 0:
            left = behind(opportunities[at - 1], position - positions[at - 1])
            if len(left.draft):
                return left
        return opportunities[at] if at < len(opportunities) else NOTHING


def behind(opportunity: Opportunity, num_tokens: int) -> Opportunity:
    """What is left of a draft once the first ``num_tokens`` of its path are text."""
    draft, path = opportunity.draft, opportunity.path
    if num_tokens < 1 or num_tokens > len(path):
        return NOTHING
    index = {path[num_tokens - 1]: -1}
    for node in range(len(draft)):
        if draft.parent(node) in index:
            index[node] = len(index) - 1
    del index[path[num_tokens - 1]]
    if not index:
        return NOTHING
    scores = [draft.scores[node] if draft.scores else 0.5 for node in index]
    parents = [index.get(draft.parent(node), -1) for node in index]
    return Opportunity(draft_of(scores, parents, draft.source), [index[node] for node in path[num_tokens:]])


@dataclass(frozen=True, slots=True)
class Drafts:
    """A recorded workload. ``prompts`` and ``outputs``: tokens of each request; ``methods``: their drafts, in the same
    order of requests; ``shared``: tokens that all prompts begin with."""

    prompts: Sequence[int]
    outputs: Sequence[int]
    methods: Mapping[str, Recorded] = field(default_factory=dict)
    shared: int = 0


def read_drafts(path: Path) -> Drafts:
    """A recorded workload from a file. Raises ConfigError for one that is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value.get("format") != FORMAT:
            raise ConfigError(f'--drafts {path}: its "format" is not {FORMAT!r}')
        return parse(value)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"--drafts {path}: cannot be read ({why_unread(error)})") from None


def parse(value: Mapping[str, Any]) -> Drafts:
    """A document as ``Drafts``: ``requests`` with ``prompt`` and ``output`` tokens, and by method ``drafts``, a list of
    [position, scores, parents or null, path]."""
    rows = value["requests"]
    names = sorted({name for row in rows for name in row["drafts"]})
    return Drafts(
        prompts=[row["prompt"] for row in rows],
        outputs=[row["output"] for row in rows],
        methods={name: Recorded([_request(row["drafts"].get(name, ()), name) for row in rows]) for name in names},
        shared=value.get("shared", 0),
    )


def _request(rows: Sequence[Any], method: str) -> tuple[list[int], list[Opportunity]]:
    found = [Opportunity(draft_of(scores, parents, method), path) for _, scores, parents, path in rows]
    return [row[0] for row in rows], found
