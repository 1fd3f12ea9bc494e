"""What clients get: OpenAI's objects, whole and in chunks, as plain dicts. ``openai.types`` reads them in the tests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.config import MetricsLevel
from outrider.outputs import CompletionOutput, RequestOutput, RequestStats, StepToken, StreamChunk, ToldStep
from outrider.server import acceptance, logprobs
from outrider.server.parsers.answer import Call, Part
from outrider.server.schemas import StreamOptions
from outrider.target.tokenizer import Tokenizer

_REASONS = {"stop": "stop", "length": "length", "abort": "stop"}


@dataclass(frozen=True, slots=True)
class Head:
    """What all objects of one answer share. ``num_logprobs``: alternatives that were asked for at every token;
    ``shows_ids``: the answer holds the ids of its tokens; ``names_ids``: logprobs name tokens by their ids; ``before``:
    what stands before the answers to a conversation; ``metrics``: what is said of acceptance; ``seed``: of the first
    prompt."""

    answer_id: str
    model: str
    kind: str
    tokenizer: Tokenizer
    num_logprobs: int = 0
    shows_ids: bool = False
    names_ids: bool = False
    before: str = ""
    metrics: MetricsLevel = "none"
    seed: int = 0
    created: int = field(default_factory=lambda: int(time.time()))

    def wrap(self, choices: list[dict[str, Any]], kind: str | None = None, **more: Any) -> dict[str, Any]:
        """An object around ``choices``."""
        own = {"id": self.answer_id, "object": kind or self.kind, "created": self.created, "model": self.model}
        return {**own, "seed": self.seed, "choices": choices, **more}


def usage(outputs: Sequence[RequestOutput], **details: int) -> dict[str, Any]:
    """Tokens of one call. Accepted and rejected prediction tokens are those that were drafted from the prediction;
    ``details``: further ones of the answer."""
    stats = RequestStats()
    for output in outputs:
        stats.merge(output.stats)
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    answer = sum(len(sample.token_ids) for output in outputs for sample in output.outputs)
    accepted = stats.committed_by.get("prediction", 0)
    rejected = stats.drafted_by.get("prediction", 0) - accepted
    own = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
    return {
        **tokens(prompt, answer),
        "prompt_tokens_details": {"cached_tokens": stats.num_cached_tokens},
        "completion_tokens_details": {**own, **details},
    }


def tokens(prompt: int, answer: int) -> dict[str, Any]:
    """The counts that every usage has."""
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


class Tally:
    """Tokens of a stream so far, for clients that want to see them in every chunk."""

    def __init__(self, options: StreamOptions | None, num_prompt_tokens: int) -> None:
        self._wanted = options is not None and options.continuous_usage_stats
        self._prompt, self._answer = num_prompt_tokens, 0

    def add(self, num_tokens: int) -> dict[str, Any]:
        """The ``usage`` of a chunk that adds so many."""
        self._answer += num_tokens
        return {"usage": tokens(self._prompt, self._answer)} if self._wanted else {}


def closing(head: Head, outputs: Sequence[RequestOutput], **details: int) -> dict[str, Any]:
    """What stands at the end of one call: its tokens, and its acceptance where that is wanted."""
    return {"usage": usage(outputs, **details), **acceptance.metrics(outputs, head.metrics)}


def chat_object(head: Head, output: RequestOutput, parts: Sequence[Part], **details: int) -> dict[str, Any]:
    """A ``chat.completion``; ``parts``: its samples' texts, taken apart."""
    choices = [
        {
            "index": sample.index,
            "message": message(head.before, part),
            "logprobs": _chat_logprobs(head, sample),
            **_rest(head, sample, calls=bool(part.calls)),
        }
        for sample, part in zip(output.outputs, parts, strict=True)
    ]
    ids = prompt_ids(head, output.prompt_token_ids)
    return head.wrap(choices, **closing(head, [output], **details), **ids)


def message(before: str, part: Part) -> dict[str, Any]:
    """An assistant's message; without content it is None where there is something else."""
    text = before + part.content
    content = text if text or not (part.calls or part.reasoning) else None
    calls = [{"id": call.call_id, "type": "function", "function": _function(call)} for call in part.calls]
    own = {"role": "assistant", "content": content, "refusal": None}
    return {**own, **_reasoning(part), **({"tool_calls": calls} if calls else {})}


def delta(part: Part) -> dict[str, Any]:
    """What a part of the text adds to a message."""
    calls = []
    for call in part.calls:
        begins = {"id": call.call_id, "type": "function"} if call.name else {}
        calls.append({"index": call.index, **begins, "function": _function(call)})
    own = {"content": part.content} if part.content else {}
    return {**own, **_reasoning(part), **({"tool_calls": calls} if calls else {})}


def _function(call: Call) -> dict[str, Any]:
    return {**({"name": call.name} if call.name else {}), "arguments": call.arguments}


def _reasoning(part: Part) -> dict[str, Any]:
    return {"reasoning_content": part.reasoning, "reasoning": part.reasoning} if part.reasoning else {}


def chat_first(head: Head, index: int, ids: Sequence[int], **more: Any) -> dict[str, Any]:
    """The first ``chat.completion.chunk`` of a choice: its role."""
    delta = {"role": "assistant", "content": head.before}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
    return head.wrap([choice], "chat.completion.chunk", **prompt_ids(head, ids), **more)


def chat_chunk(head: Head, chunk: StreamChunk, part: Part, calls: bool, **more: Any) -> dict[str, Any]:
    """A ``chat.completion.chunk``; ``part``: its text, taken apart; ``calls``: there have been tool calls."""
    choice = {
        "index": chunk.index,
        "delta": delta(part),
        "logprobs": _chat_logprobs(head, chunk),
        **_rest(head, chunk, calls=calls),
    }
    return head.wrap([choice], "chat.completion.chunk", **more)


def completion_object(head: Head, outputs: Sequence[RequestOutput], echo: bool) -> dict[str, Any]:
    """A ``text_completion`` of one prompt or several: the samples of the first one come first."""
    choices = []
    for number, output in enumerate(outputs):
        before = prompt_text(head.tokenizer, output.prompt, output.prompt_token_ids) if echo else ""
        for sample in output.outputs:
            choices.append(
                {
                    "index": number * len(output.outputs) + sample.index,
                    "text": before + sample.text,
                    "logprobs": logprobs.of_completion(sample.token_ids, sample.logprobs, len(before), head.names_ids),
                    **_rest(head, sample),
                    **prompt_ids(head, output.prompt_token_ids),
                }
            )
    return head.wrap(choices, **closing(head, outputs))


def completion_chunk(
    head: Head, chunk: StreamChunk, first: int, offset: int, prompt: Sequence[int] | None = None, **more: Any
) -> dict[str, Any]:
    """A part of a streamed ``text_completion``; ``first``: the index of the prompt's first choice; ``offset``:
    characters that the choice has already; ``prompt``: its ids, with the choice's first part; ``more``: beside the
    choice."""
    choice = {
        "index": first + chunk.index,
        "text": chunk.text,
        "logprobs": logprobs.of_completion(chunk.token_ids, chunk.logprobs, offset, head.names_ids),
        **_rest(head, chunk),
        **({} if prompt is None else prompt_ids(head, prompt)),
    }
    return head.wrap([choice], **more)


def _chat_logprobs(head: Head, part: CompletionOutput | StreamChunk) -> dict[str, Any] | None:
    return logprobs.of_chat(head.tokenizer, part.token_ids, part.logprobs, head.num_logprobs, head.names_ids)


def _rest(head: Head, part: CompletionOutput | StreamChunk, calls: bool = False) -> dict[str, Any]:
    """What every choice ends with, whole or in part."""
    ids = {"token_ids": part.token_ids} if head.shows_ids else {}
    reason = _reason(part.finish_reason)
    reasons = {"finish_reason": "tool_calls" if calls and reason == "stop" else reason, "stop_reason": part.stop_reason}
    return {**reasons, **ids, **told(part.steps)}


def prompt_ids(head: Head, ids: Sequence[int]) -> dict[str, Any]:
    """The field with a prompt's ids, where they are shown."""
    return {"prompt_token_ids": list(ids)} if head.shows_ids else {}


def told(steps: Sequence[ToldStep] | None) -> dict[str, Any]:
    """The ``outrider`` field of a choice: its new steps, where ``speculation.explain`` asked for them."""
    return {} if steps is None else {"outrider": {"steps": [_step(step) for step in steps]}}


def _step(step: ToldStep) -> dict[str, Any]:
    tokens = [{**_told_token(token), "drafted": bool(token.source)} for token in step.tokens]
    return {
        "prefill": step.prefill,
        "method": step.method or None,
        "tokens": tokens,
        "rejected": [_told_token(token) for token in step.rejected],
        "num_drafted": step.num_drafted,
        "num_accepted": sum(token["drafted"] for token in tokens),
        "draft_seconds": round(step.draft_seconds, 6),
        "verify_seconds": round(step.verify_seconds, 6),
    }


def _told_token(token: StepToken) -> dict[str, Any]:
    return {"id": token.token_id, "text": token.text, "source": token.source or None}


def prompt_text(tokenizer: Tokenizer, text: str | None, ids: Sequence[int]) -> str:
    """A prompt as text, however it was given."""
    return tokenizer.decode(ids) if text is None else text


def _reason(reason: str | None) -> str | None:
    return None if reason is None else _REASONS[reason]
