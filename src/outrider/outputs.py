"""What a caller gets back; vLLM's names where vLLM has one."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.core.accounting import SpeculationStats


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability under the raw law, its rank (1 = best) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True)
class StepToken:
    """One token of a step that is told. ``text``: what it added to the text; all of them add up to it, but for what a
    stop string cut. ``source``: the drafter that proposed it; empty for the target's own."""

    token_id: int
    text: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class ToldStep:
    """One step of one sample, where ``speculation.explain`` asks for it.

    ``tokens``: those that were committed; ``rejected``: the draft's likeliest path behind the accepted ones, down to
    its leaf, whose text is that of each token alone. ``num_drafted``: nodes that were verified. Seconds are the
    sample's share of the step.
    """

    tokens: list[StepToken]
    rejected: list[StepToken]
    num_drafted: int
    prefill: bool
    method: str
    draft_seconds: float
    verify_seconds: float


@dataclass(slots=True)
class CompletionOutput:
    """One sample of one prompt. ``from_draft[i]``: token i was drafted and accepted. ``steps``, and ``drafts``
    (verified and accepted tokens of every draft): when asked for."""

    index: int
    text: str
    token_ids: list[int]
    from_draft: list[bool]
    logprobs: list[dict[int, Logprob]] | None
    cumulative_logprob: float | None
    finish_reason: str | None  # stop, length, abort, error
    stop_reason: int | str | None  # the stop token id or stop string that ended it
    steps: list[ToldStep] | None = None
    drafts: list[tuple[int, int]] | None = None


@dataclass(slots=True)
class RequestStats(SpeculationStats):
    """Counters of a request (all samples together) and where its time went, in seconds.

    A batched step's time is shared by its sequences in proportion to their rows.
    """

    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    overhead_seconds: float = 0.0
    queue_seconds: float = 0.0
    time_to_first_token: float = 0.0
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    num_preemptions: int = 0

    @property
    def decode_seconds(self) -> float:
        """Time of the steps after prefill."""
        return self.draft_seconds + self.verify_seconds + self.overhead_seconds


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt. ``speculation``: reasons of automatic choices, when any were made."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    stats: RequestStats
    seed: int = 0
    error: str | None = None
    speculation: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What one step added to one sample; ``text`` may lag behind the tokens while it may become a stop string."""

    text: str
    token_ids: list[int]
    from_draft: list[bool]
    finish_reason: str | None = None
    index: int = 0
    logprobs: list[dict[int, Logprob]] | None = None
    stop_reason: int | str | None = None
    steps: list[ToldStep] | None = None
