"""What clients get: OpenAI's objects, whole and in chunks, as plain dicts. ``openai.types`` reads them in the tests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.outputs import Logprob, RequestOutput, StepToken, StreamChunk, ToldStep
from outrider.target.tokenizer import Tokenizer

_REASONS = {"stop": "stop", "length": "length", "abort": "stop"}


@dataclass(frozen=True, slots=True)
class Head:
    """What all objects of one answer share. ``num_logprobs``: alternatives that were asked for at every token."""

    answer_id: str
    model: str
    kind: str
    tokenizer: Tokenizer
    num_logprobs: int = 0
    created: int = field(default_factory=lambda: int(time.time()))

    def wrap(self, choices: list[dict[str, Any]], kind: str | None = None, **more: Any) -> dict[str, Any]:
        """An object around ``choices``."""
        own = {"id": self.answer_id, "object": kind or self.kind, "created": self.created, "model": self.model}
        return {**own, "choices": choices, **more}


def usage(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """Tokens of one call."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    answer = sum(len(sample.token_ids) for output in outputs for sample in output.outputs)
    cached = sum(output.stats.num_cached_tokens for output in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def chat_object(head: Head, output: RequestOutput) -> dict[str, Any]:
    """A ``chat.completion``."""
    choices = [
        {
            "index": sample.index,
            "message": {"role": "assistant", "content": sample.text, "refusal": None},
            "logprobs": _chat_logprobs(head, sample.token_ids, sample.logprobs),
            "finish_reason": _reason(sample.finish_reason),
            "stop_reason": sample.stop_reason,
            **told(sample.steps),
        }
        for sample in output.outputs
    ]
    return head.wrap(choices, usage=usage([output]), seed=output.seed)


def chat_first(head: Head, index: int) -> dict[str, Any]:
    """The first ``chat.completion.chunk`` of a choice: its role."""
    choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return head.wrap([choice], "chat.completion.chunk")


def chat_chunk(head: Head, chunk: StreamChunk) -> dict[str, Any]:
    """A ``chat.completion.chunk``."""
    choice = {
        "index": chunk.index,
        "delta": {"content": chunk.text} if chunk.text or not chunk.finish_reason else {},
        "logprobs": _chat_logprobs(head, chunk.token_ids, chunk.logprobs),
        "finish_reason": _reason(chunk.finish_reason),
        "stop_reason": chunk.stop_reason,
        **told(chunk.steps),
    }
    return head.wrap([choice], "chat.completion.chunk")


def completion_object(head: Head, outputs: Sequence[RequestOutput], echo: bool) -> dict[str, Any]:
    """A ``text_completion`` of one prompt or several: the samples of the first one come first."""
    choices = []
    for number, output in enumerate(outputs):
        for sample in output.outputs:
            before = prompt_text(head.tokenizer, output.prompt, output.prompt_token_ids) if echo else ""
            choices.append(
                {
                    "index": number * len(output.outputs) + sample.index,
                    "text": before + sample.text,
                    "logprobs": completion_logprobs(head.tokenizer, sample.token_ids, sample.logprobs, len(before)),
                    "finish_reason": _reason(sample.finish_reason),
                    "stop_reason": sample.stop_reason,
                    **told(sample.steps),
                }
            )
    return head.wrap(choices, usage=usage(outputs), seed=outputs[0].seed)


def completion_chunk(head: Head, chunk: StreamChunk, first: int, offset: int) -> dict[str, Any]:
    """A part of a streamed ``text_completion``; ``first``: the index of the prompt's first choice; ``offset``:
    characters that the choice has already."""
    choice = {
        "index": first + chunk.index,
        "text": chunk.text,
        "logprobs": completion_logprobs(head.tokenizer, chunk.token_ids, chunk.logprobs, offset),
        "finish_reason": _reason(chunk.finish_reason),
        "stop_reason": chunk.stop_reason,
        **told(chunk.steps),
    }
    return head.wrap([choice])


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


def _chat_logprobs(
    head: Head, tokens: Sequence[int], logprobs: Sequence[Mapping[int, Logprob]] | None
) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    content = []
    for token, entry in zip(tokens, logprobs, strict=True):
        ranked = sorted(entry.items(), key=lambda item: item[1].rank)[: head.num_logprobs]
        best = [_entry(head.tokenizer, other, each) for other, each in ranked]
        content.append({**_entry(head.tokenizer, token, entry[token]), "top_logprobs": best})
    return {"content": content, "refusal": None}


def _entry(tokenizer: Tokenizer, token: int, logprob: Logprob) -> dict[str, Any]:
    text = tokenizer.token_bytes(token)
    return {"token": logprob.decoded_token, "logprob": max(logprob.logprob, -9999.0), "bytes": list(text)}


def completion_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Sequence[Mapping[int, Logprob]] | None, offset: int
) -> dict[str, Any] | None:
    """OpenAI's older form; ``offset``: characters before the first token."""
    if logprobs is None:
        return None
    out: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token, entry in zip(tokens, logprobs, strict=True):
        out["tokens"].append(entry[token].decoded_token)
        out["token_logprobs"].append(max(entry[token].logprob, -9999.0))
        out["top_logprobs"].append({each.decoded_token: max(each.logprob, -9999.0) for each in entry.values()})
        out["text_offset"].append(offset)
        offset += len(entry[token].decoded_token)
    return out
