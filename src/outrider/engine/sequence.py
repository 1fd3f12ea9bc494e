"""The state of one sequence: a few named lengths and one invariant.

``num_prompt_tokens <= len(token_ids)`` and ``num_computed < len(token_ids)``: the KV of the first ``num_computed``
tokens is committed, the last token (the root) is never among them. ``num_uncomputed`` tokens are ahead: more than one
means prefill (a new prompt, or recomputation after a preemption), one means decoding.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from torch import Tensor

from outrider.cache.table import BlockTable
from outrider.config import SamplingParams
from outrider.core.constraint import Constraint
from outrider.core.logits import LogitsPipeline
from outrider.drafters.base import Drafter
from outrider.engine.text import OutputText
from outrider.errors import GrammarError, OutriderError
from outrider.outputs import CompletionOutput, Logprob, RequestStats, ToldStep


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of one request."""

    seq_id: int
    request_id: str
    index: int  # which of the request's n samples
    params: SamplingParams
    token_ids: list[int]
    num_prompt_tokens: int
    pipeline: LogitsPipeline
    noise_key: int
    end_ids: frozenset[int]  # EOS ids unless ignored
    text: OutputText
    constraint: Constraint | None = None  # the language whose end ends it
    prediction: Seq[int] = ()
    cache_salt: str = ""
    tenant: str = ""  # on whose behalf it runs: tenants take turns
    task: str = ""  # a hint for drafters that choose among others
    drafter: Drafter | None = None
    method: str = ""
    fixed_tokens: int | None = None  # K fixed by the user
    off_reason: str = ""  # why the drafter was switched off
    planned: str = ""  # the planner's latest choice, in words
    arrival: float = 0.0  # when it was queued, in seconds of time.perf_counter
    table: BlockTable | None = None
    begun: bool = False  # the drafter knows the sequence
    output_ids: list[int] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    stats: RequestStats = field(default_factory=RequestStats)
    hidden: list[Tensor] = field(default_factory=list)  # taps of computed rows the drafter has not seen
    cached_as: str = ""  # the salt that its prefixes are kept under
    scores: list[Tensor] | None = None  # processed scores [vocab] of every emitted token, where somebody collects them
    drafts: list[tuple[int, int]] | None = None  # (verified, accepted) of each draft, where the request wants them
    steps: list[ToldStep] | None = None  # where the request wants every step told
    text_ends: list[int] = field(default_factory=list)  # and then: length of the text after each output token
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    failure: OutriderError | None = None  # why it ended with an error

    @property
    def num_computed(self) -> int:
        """Tokens whose KV is committed."""
        return 0 if self.table is None else self.table.length

    @property
    def num_uncomputed(self) -> int:
        """Tokens ahead of the cache, the root included; at least one."""
        return len(self.token_ids) - self.num_computed

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers whose outputs its drafter wants to see, of every row."""
        return () if self.drafter is None else tuple(self.drafter.needs.hidden_layers)

    @property
    def prefix_salt(self) -> str:
        """What tells its cached prefixes from others: blocks that hold hidden states stand apart from those without."""
        return f"{self.cache_salt}\0{self.hidden_layers}" if self.hidden_layers else self.cache_salt

    def publish(self) -> None:
        """Let others reuse the committed blocks, unless its drafter has changed since it was admitted."""
        if self.table is not None and self.cached_as == self.prefix_salt:
            self.table.publish(self.token_ids, self.cached_as)

    @property
    def finished(self) -> bool:
        """Nothing more will be generated."""
        return self.finish_reason is not None

    def tokens_left(self, max_model_len: int) -> int:
        """How many tokens may still be generated."""
        room = max_model_len - len(self.token_ids)
        return room if self.params.max_tokens is None else min(room, self.params.max_tokens - len(self.output_ids))

    def append(self, token: int, drafted: bool, max_model_len: int) -> bool:
        """Commit one token; True when it ends the sequence (EOS, stop token, stop string, end of
        the grammar, length)."""
        self.token_ids.append(token)
        self.output_ids.append(token)
        self.from_draft.append(drafted)
        enough = len(self.output_ids) >= self.params.min_tokens
        if token in self.end_ids and enough:
            self.finish_reason = "stop"
            self.text.end(token)
        elif token in (self.params.stop_token_ids or ()) and enough:
            self.finish_reason, self.stop_reason = "stop", token
            self.text.end(token)
        elif (found := self.text.push(token, stoppable=enough)) is not None:
            self.finish_reason, self.stop_reason = "stop", found
        elif self.constraint is not None and self._leave_language():
            self.text.finish()
        elif self.tokens_left(max_model_len) <= 0:
            self.stop_reason = self.text.finish(stoppable=enough)
            self.finish_reason = "length" if self.stop_reason is None else "stop"
        if self.steps is not None:
            self.text_ends.append(len(self.text.text))
        return self.finished

    def _leave_language(self) -> bool:
        """Whether the structured output ends here: nothing can follow, or it has gone wrong."""
        assert self.constraint is not None
        if self.constraint.complete(self.output_ids):
            self.finish_reason = "stop"
        elif not self.constraint.accepts(self.output_ids):
            self.finish_reason = "error"
            self.failure = GrammarError(
                "structured_outputs: no token of the model's vocabulary writes what must follow: loosen the constraint"
            )
        return self.finished

    def completion(self) -> CompletionOutput:
        """The sample as the caller sees it."""
        wanted, total = self.params.logprobs is not None, None
        if wanted:
            chosen = zip(self.logprobs, self.output_ids, strict=True)
            total = sum(entry[token].logprob for entry, token in chosen)
        return CompletionOutput(
            index=self.index,
            text=self.text.text,
            token_ids=list(self.output_ids),
            from_draft=list(self.from_draft),
            logprobs=list(self.logprobs) if wanted else None,
            cumulative_logprob=total,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            steps=None if self.steps is None else list(self.steps),
            drafts=None if self.drafts is None else list(self.drafts),
        )
