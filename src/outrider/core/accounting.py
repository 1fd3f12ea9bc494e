"""Counters of speculation for one request or many: additive integers, and the rates that follow from them.

A position is a depth in the tree: position 0 are the children of the root. Rates are pooled over tokens and steps,
never means of per-request rates, and are None where nothing was counted.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from outrider.core.draft import Draft
from outrider.errors import ContractError


@dataclass(slots=True)
class SpeculationStats:
    """What the steps of one request, or of a pool of requests, did. Two of them add up with ``+``.

    Accepted tokens are those that the verifier accepted; committed tokens are those that the request got: what stands
    after an EOS, a stop string or a limit is accepted but never committed. The completion has
    ``num_first_tokens + num_committed_tokens`` tokens.
    """

    num_first_tokens: int = 0  # tokens chosen by prefill, before any step
    num_steps: int = 0  # steps after prefill, with or without a draft
    num_spec_steps: int = 0  # steps with at least one draft token: all that vLLM's counters count
    num_draft_tokens: int = 0  # nodes that were verified
    num_accepted_draft_tokens: int = 0
    num_committed_tokens: int = 0  # by steps: accepted, bonus and recovered tokens that were kept
    num_committed_draft_tokens: int = 0  # those of them that were drafted
    proposed_per_position: list[int] = field(default_factory=list)  # steps whose draft reached position i
    tested_per_position: list[int] = field(default_factory=list)  # steps with a candidate after i accepted tokens
    accepted_per_position: list[int] = field(default_factory=list)  # steps that accepted more than i tokens
    acceptance_histogram: list[int] = field(default_factory=list)  # spec steps that accepted exactly i tokens
    drafted_by: dict[str, int] = field(default_factory=dict)  # verified nodes that a drafter had a part in, by method
    committed_by: dict[str, int] = field(default_factory=dict)  # those of them that were kept

    def add_first_token(self) -> None:
        """Count the token that prefill chose."""
        self.num_first_tokens += 1

    def add_step(self, draft: Draft, path: Sequence[int], num_committed: int) -> None:
        """Count one step: what was verified, the accepted ``path``, and how many of its tokens were committed.

        Raises ContractError when more is committed than the accepted tokens and the one that follows them.
        """
        accepted = len(path)
        if not 0 <= num_committed <= accepted + 1:
            raise ContractError(f"step committed {num_committed} tokens after accepting {accepted}: at most one more")
        self.num_steps += 1
        self.num_committed_tokens += num_committed
        self.num_committed_draft_tokens += min(accepted, num_committed)
        if not len(draft):
            return
        self.num_spec_steps += 1
        self.num_draft_tokens += len(draft)
        self.num_accepted_draft_tokens += accepted
        with_children = {draft.parent(node) for node in range(len(draft))}
        _bump(self.proposed_per_position, range(max(draft.depths())))
        _bump(self.tested_per_position, [at for at, node in enumerate((-1, *path)) if node in with_children])
        _bump(self.accepted_per_position, range(accepted))
        _bump(self.acceptance_histogram, [accepted])
        _count(self.drafted_by, draft, range(len(draft)))
        _count(self.committed_by, draft, path[:num_committed])

    def merge(self, other: SpeculationStats) -> None:
        """Add the counts of ``other`` to these."""
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if isinstance(mine, dict):
                setattr(self, item.name, {name: mine.get(name, 0) + theirs.get(name, 0) for name in (*mine, *theirs)})
            else:
                setattr(self, item.name, mine + theirs if isinstance(mine, int | float) else _add(mine, theirs))

    def __add__(self, other: SpeculationStats) -> SpeculationStats:
        total = SpeculationStats()
        total.merge(self)
        total.merge(other)
        return total

    @classmethod
    def pooled(cls, parts: Iterable[SpeculationStats]) -> SpeculationStats:
        """The sum of ``parts``."""
        total = cls()
        for part in parts:
            total.merge(part)
        return total

    @property
    def num_completion_tokens(self) -> int:
        """All tokens that the requests got."""
        return self.num_first_tokens + self.num_committed_tokens

    @property
    def num_plain_steps(self) -> int:
        """Steps without a draft."""
        return self.num_steps - self.num_spec_steps

    @property
    def mean_acceptance_length(self) -> float | None:
        """Committed tokens after the first / steps after prefill; steps without a draft count."""
        return _ratio(self.num_committed_tokens, self.num_steps)

    @property
    def vllm_mean_acceptance_length(self) -> float | None:
        """vLLM's form: 1 + accepted draft tokens / steps with a draft."""
        ratio = _ratio(self.num_accepted_draft_tokens, self.num_spec_steps)
        return None if ratio is None else 1.0 + ratio

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / verified draft tokens. Falls as K or the tree grows, whatever the drafter: compare no K by it."""
        return _ratio(self.num_accepted_draft_tokens, self.num_draft_tokens)

    @property
    def per_position_acceptance(self) -> list[float]:
        """Unconditional: [i] = P(the first i + 1 positions are accepted), over all steps with a draft (vLLM's form)."""
        accepted = _pad(self.accepted_per_position, len(self.proposed_per_position))
        return [count / self.num_spec_steps for count in accepted]

    @property
    def conditional_acceptance(self) -> list[float | None]:
        """[i] = P(position i is accepted | all before it are, and the draft goes on below them); None if never so."""
        width = len(self.proposed_per_position)
        accepted, tested = _pad(self.accepted_per_position, width), _pad(self.tested_per_position, width)
        return [_ratio(*pair) for pair in zip(accepted, tested, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Counters and rates under their names, ready for JSON."""
        counters = {item.name: getattr(self, item.name) for item in fields(self)}
        rates = {name: getattr(self, name) for name in _DERIVED}
        return copy.deepcopy(counters | rates)


_DERIVED = (
    "num_completion_tokens",
    "num_plain_steps",
    "mean_acceptance_length",
    "vllm_mean_acceptance_length",
    "draft_acceptance_rate",
    "per_position_acceptance",
    "conditional_acceptance",
)


@lru_cache(maxsize=1024)
def _drafters(source: str) -> frozenset[str]:
    """Methods behind a node: of ``auto/ngram+suffix#2:part`` these are ngram and suffix."""
    return frozenset(re.split("[:#]", part.rpartition("/")[2])[0] for part in source.split("+") if part)


def _count(counts: dict[str, int], draft: Draft, nodes: Iterable[int]) -> None:
    for node in nodes:
        for method in _drafters(draft.source_of(node)):
            counts[method] = counts.get(method, 0) + 1


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _pad(counts: list[int], width: int) -> list[int]:
    return counts + [0] * (width - len(counts))


def _add(left: list[int], right: list[int]) -> list[int]:
    width = max(len(left), len(right))
    return [a + b for a, b in zip(_pad(left, width), _pad(right, width), strict=True)]


def _bump(counts: list[int], positions: Iterable[int]) -> None:
    for position in positions:
        counts.extend([0] * (position + 1 - len(counts)))
        counts[position] += 1
