"""A fake engine with the face of ``outrider.LLM``: deterministic text, no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outrider.config import SamplingParams, SpeculativeConfig
from outrider.outputs import CompletionOutput, Logprob, RequestOutput, RequestStats, StreamChunk

VOCAB = 50


class FakeTokenizer:
    """One token a character."""

    has_chat_template = True

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Character codes within the vocabulary."""
        return [ord(char) % VOCAB for char in text]

    def decode(self, token_ids: Sequence[int], **_: object) -> str:
        """Letters."""
        return "".join(chr(97 + token % 26) for token in token_ids)

    def token_text(self, token_id: int) -> str:
        """A letter."""
        return self.decode([token_id])

    def render_chat(self, messages: Sequence[dict[str, str]]) -> str:
        """``role:content|`` for every message."""
        return "".join(f"{message['role']}:{message['content']}|" for message in messages)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of ``render_chat``."""
        return self.encode(self.render_chat(messages))


class FakeLLM:
    """Answers token i with (sum of the prompt + i) mod VOCAB; with speculation two tokens a step."""

    exact = True
    lies: dict[str, int] = {}  # method -> output position at which it answers another token  # noqa: RUF012
    last: FakeLLM | None = None

    def __init__(self, model: str, *, threads: int | None = None, speculative_config: Any = None, **settings: Any):
        self.model, self.threads, self.settings = model, threads, settings
        self.configs: list[SpeculativeConfig] = list(speculative_config or [])
        self.calls: list[tuple[Any, SamplingParams]] = []
        self.closed = False
        self.refused: dict[str, str] = {}
        self.tokenizer = FakeTokenizer()
        type(self).last = self
        FakeLLM.last = self

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    def get_tokenizer(self) -> FakeTokenizer:
        """The fake tokenizer."""
        return self.tokenizer

    def describe(self) -> dict[str, Any]:
        """Facts."""
        return {"model": self.model, "dtype": "float16", "exact": self.exact, "threads": self.threads or 1}

    def explain(self) -> list[str]:
        """Reasons."""
        return ["speculation on: it pays"]

    def generate(self, prompts: Any, sampling_params: Any = None, use_tqdm: bool = True) -> list[Any]:
        """One output a prompt."""
        items = prompts if isinstance(prompts, list) and not isinstance(prompts[0], int) else [prompts]
        params = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(items)
        return [self._answer(item, each) for item, each in zip(items, params, strict=True)]

    def chat(self, messages: Any, sampling_params: Any = None) -> list[Any]:
        """One output."""
        text = self.tokenizer.render_chat(messages)
        return self.generate([self.tokenizer.encode(text)], sampling_params)

    def stream(
        self, prompt: Any = None, *, messages: Any = None, sampling_params: SamplingParams | None = None
    ) -> Iterator[StreamChunk]:
        """The answer step by step: the first token, then one token a step, or with speculation two."""
        text = prompt if messages is None else self.tokenizer.render_chat(messages)
        assert sampling_params is not None
        first = self._answer(text, sampling_params).outputs[0]
        size = 2 if any(first.from_draft) else 1
        for start in (0, *range(1, len(first.token_ids), size)):
            end = start + size if start else 1
            ids, last = first.token_ids[start:end], end >= len(first.token_ids)
            drafted = first.from_draft[start:end]
            yield StreamChunk(self.tokenizer.decode(ids), ids, drafted, first.finish_reason if last else None)

    def _method(self, params: SamplingParams) -> str | None:
        speculation = params.speculation
        if speculation is None:
            return self.configs[0].method if self.configs else None
        if not speculation.enabled:
            return None
        return speculation.method or self.configs[0].method

    def _answer(self, prompt: Any, params: SamplingParams) -> RequestOutput:
        self.calls.append((prompt, params))
        if isinstance(prompt, dict):
            tokens = list(prompt["prompt_token_ids"])
        else:
            tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        count = params.max_tokens or 4
        method = self._method(params)
        base = sum(tokens) + (params.seed or 0 if params.temperature else 0)
        ids = [(base + index) % VOCAB for index in range(count)]
        if params.allowed_token_ids:
            ids = list(params.allowed_token_ids)[:1]
        if method in self.lies and self.lies[method] < count:
            ids[self.lies[method]] = (ids[self.lies[method]] + 1) % VOCAB
        drafted = [method is not None and index % 2 == 1 for index in range(count)]
        logprobs = [{token: Logprob(self.logprob(method, token), 1, "")} for token in ids]
        completion = CompletionOutput(
            index=0,
            text=self.tokenizer.decode(ids),
            token_ids=ids,
            from_draft=drafted,
            logprobs=logprobs if params.logprobs is not None else None,
            cumulative_logprob=None,
            finish_reason="length",
            stop_reason=None,
        )
        return RequestOutput(
            request_id="0",
            prompt=None,
            prompt_token_ids=tokens,
            outputs=[completion],
            finished=True,
            stats=self._stats(method, count),
        )

    def logprob(self, method: str | None, token: int) -> float:
        """Logprob of a token; the same for every token here."""
        return -1.0

    def _stats(self, method: str | None, count: int) -> RequestStats:
        """A second a step, of which seven tenths verify."""
        steps = count - 1 if method is None else count // 2
        stats = RequestStats(num_first_tokens=1, num_steps=steps, num_committed_tokens=count - 1)
        seconds = (count - 1) * (1.0 if method is None else 0.5)
        stats.draft_seconds, stats.verify_seconds, stats.overhead_seconds = 0.1 * seconds, 0.7 * seconds, 0.2 * seconds
        stats.prefill_seconds = stats.time_to_first_token = 0.5
        if method is not None and steps:
            stats.num_spec_steps = stats.num_accepted_draft_tokens = stats.num_committed_draft_tokens = steps
            stats.num_draft_tokens = 2 * steps
            stats.proposed_per_position = stats.tested_per_position = [steps, steps]
            stats.accepted_per_position = [steps]
            stats.acceptance_histogram = [0, steps]
        return stats
