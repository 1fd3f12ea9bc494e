"""The record of one generation: plain values, ready for JSON, that say what every step drafted, kept and emitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from outrider.core.verifiers.table import LawName
from outrider.outputs import RequestStats

FORMAT = "outrider-trace/1"

Outcome = Literal["accepted", "rejected", "not reached", "pruned"]
Kind = Literal["first", "drafted", "bonus", "recovered", "plain"]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node of a draft as it was proposed.

    ``outcome``: "not reached" lies below a rejected node, "pruned" was proposed and not verified. ``q``: what the draft
    law gives the token, None for a delta edge, whose token was not drawn. ``score``: the drafter's
    own estimate of P(accepted | parent accepted). ``p``: what the target's processed law gives the token after its
    parent, ``raw``: the same before temperature, filters and penalties; None where the parent was not verified.
    """

    token_id: int
    text: str
    parent: int
    depth: int
    source: str
    law: LawName
    outcome: Outcome
    q: float | None
    score: float | None
    p: float | None
    raw: float | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of the target's likeliest tokens at a node that the walk visited."""

    text: str
    p: float
    raw: float


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One token that was committed. ``node``: that of the draft it was, or None. ``p`` and ``raw`` as in a node."""

    token_id: int
    text: str
    kind: Kind
    node: int | None
    p: float
    raw: float


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step; number 0 is the prefill, which emits the first token and drafts nothing.

    ``position``: how many output tokens there were before. ``path``: accepted nodes from the root downwards, of which
    a stop may have cut the last. ``best[i]``: the target's likeliest tokens at the root (0) and after ``path[i - 1]``.
    """

    number: int
    position: int
    root: str
    num_asked: int
    num_rows: int
    nodes: list[NodeRecord]
    path: list[int]
    emitted: list[TokenRecord]
    best: list[list[Candidate]]
    words: str
    draft_seconds: float
    verify_seconds: float
    overhead_seconds: float


@dataclass(frozen=True, slots=True)
class PlainRun:
    """Plain decoding of the same prompt."""

    identical: bool  # the same tokens
    num_tokens: int
    tokens_per_second: float | None
    prefill_seconds: float
    decode_seconds: float


@dataclass(frozen=True, slots=True)
class Trace:
    """One generation. ``greedy``: temperature 0, where p is one on the best token and ``raw`` says more."""

    method: str | None
    verifier: str | None
    lossless: bool
    greedy: bool
    model: Mapping[str, Any]
    settings: Mapping[str, Any]
    prompt: str
    num_prompt_tokens: int
    text: str
    finish_reason: str | None
    steps: list[StepRecord]
    stats: RequestStats
    plain: PlainRun | None = None
    reasons: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; ``stats`` with its rates and times."""
        names = (name for name in self.__dataclass_fields__ if name != "stats")
        values = {name: _plain(getattr(self, name)) for name in names}
        stats = {**self.stats.to_dict(), "decode_seconds": self.stats.decode_seconds}
        return {"format": FORMAT, **values, "stats": stats, "tokens_per_second": tokens_per_second(self.stats)}


def tokens_per_second(stats: RequestStats) -> float | None:
    """Tokens after the first per second of the steps after prefill."""
    return stats.num_committed_tokens / stats.decode_seconds if stats.decode_seconds > 0 else None


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value
