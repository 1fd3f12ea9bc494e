"""What an engine's metrics say about speculation, under one set of names for all engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LOOKUPS = frozenset(
    {"ngram", "ngram_gpu", "suffix", "rest", "prediction", "lookahead", "token_recycling", "grammar", "auto"}
)  # methods that guess from text: no weights that can be wrong


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums over one window, or since the engine's start. None where the engine does not say.

    ``engine``: whose metrics they are; ``source``: the address or file. ``method``: the drafter's, where the engine
    names it. ``seconds``: the length of the window; None for sums since the start. Counters are over that window;
    ``num_running``, ``num_waiting`` and usages are of its end. ``sources``: the metric that a field was read from.
    ``before``: the same up to the begin of the window. ``resets``: counters that fell within the window, so that the
    sums are those since. ``labels``: what info metrics say. Seconds are seconds.
    """

    engine: str
    source: str
    method: str | None = None
    seconds: float | None = None
    num_drafts: float | None = None
    num_draft_tokens: float | None = None
    num_accepted_tokens: float | None = None
    accepted_per_position: tuple[float, ...] = ()
    tested_per_position: tuple[float, ...] = ()
    num_steps: float | None = None  # of sequences after their prefill, with or without a draft
    num_plain_steps: float | None = None  # those of sequences without a method
    num_tokens: float | None = None
    num_prompt_tokens: float | None = None
    num_requests: float | None = None  # that ended
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    stated_rate: float | None = None  # acceptance rate as a gauge
    stated_length: float | None = None  # mean acceptance length as a gauge
    stated_k: float | None = None
    drift: float | None = None  # 1 is an alarm
    going_rate: float | None = None
    num_running: float | None = None
    num_waiting: float | None = None
    num_preemptions: float | None = None
    cache_usage: Mapping[str, float] = field(default_factory=dict)  # by pool
    num_query_tokens: float | None = None
    num_hit_tokens: float | None = None
    stated_hit_rate: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    before: Figures | None = None
    resets: tuple[str, ...] = ()
    moved: bool = True  # whether any counter differs from the begin of the window

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens, pooled; the engine's own gauge where it has no counters."""
        exact = ratio(self.num_accepted_tokens, self.num_draft_tokens)
        return self.stated_rate if exact is None else exact

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted tokens / drafts, vLLM's mean acceptance length; the engine's gauge where it has no counters."""
        exact = ratio(self.num_accepted_tokens, self.num_drafts)
        return self.stated_length if exact is None else 1.0 + exact

    @property
    def draft_length(self) -> float | None:
        """Tokens of a draft; K where it is fixed."""
        exact = ratio(self.num_draft_tokens, self.num_drafts)
        return self.stated_k if exact is None else exact

    @property
    def per_position(self) -> tuple[float, ...]:
        """P(first i + 1 accepted). From conditional acceptance where the engine counts tested positions, so that drafts
        of other lengths do not pull it down."""
        if not self.tested_per_position:
            return tuple(value / self.num_drafts for value in self.accepted_per_position) if self.num_drafts else ()
        out, chance = [], 1.0
        for accepted, tested in zip(self.accepted_per_position, self.tested_per_position, strict=True):
            chance *= accepted / tested if tested else 0.0
            out.append(chance)
        return tuple(out)

    @property
    def first_acceptance(self) -> float | None:
        """P(the first draft token is accepted)."""
        positions = self.per_position
        return positions[0] if positions else None

    @property
    def token_cost(self) -> float | None:
        """Seconds in which a token is drafted / seconds in which the target computes a step."""
        draft, verify = ratio(self.draft_seconds, self.num_draft_tokens), ratio(self.verify_seconds, self.num_steps)
        return ratio(draft, verify)

    @property
    def hit_rate(self) -> float | None:
        """Prompt tokens found in the prefix cache / looked up."""
        exact = ratio(self.num_hit_tokens, self.num_query_tokens)
        return self.stated_hit_rate if exact is None else exact

    @property
    def speculates(self) -> bool:
        """Whether the engine says anything about drafts."""
        return any(value is not None for value in (self.num_draft_tokens, self.stated_length, self.stated_rate))

    @property
    def trained(self) -> bool:
        """Whether the drafter may have weights: a head or a draft model, or a method that the engine does not name."""
        return self.method not in LOOKUPS

    def origin(self, *names: str) -> str:
        """The metrics behind fields."""
        return ", ".join(dict.fromkeys(self.sources[name] for name in names if name in self.sources)) or self.source


def ratio(part: float | None, whole: float | None) -> float | None:
    """None where either is unknown, or nothing was counted."""
    return part / whole if part is not None and whole else None
