"""The answers' shapes, for the OpenAPI document. Answers are made as plain dicts; the tests hold them against these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Finish = Literal["stop", "length", "tool_calls"] | None


class Shape(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(extra="forbid")


class Problem(Shape):
    """What went wrong. ``param``: the field at fault, if it is one; ``code``: the status."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(Shape):
    """OpenAI's error object."""

    error: Problem


class PromptDetails(Shape):
    """``cached_tokens``: those that were in the cache already."""

    cached_tokens: int


class CompletionDetails(Shape):
    """Of the answer's tokens, and of those of a prediction that were tried in vain."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int = Field(default=0, description="there where the model reasons")


class Usage(Shape):
    """Tokens of a call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class CalledFunction(Shape):
    """``arguments``: JSON, unless the answer was cut off in them."""

    name: str
    arguments: str


class MadeCall(Shape):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Shape):
    """An assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = Field(default="", description="there where the model has reasoned; as reasoning")
    reasoning: str = ""
    tool_calls: list[MadeCall] = Field(default=[], description="there where it calls tools")


class TokenLogprob(Shape):
    """A token's logprob under the raw law; ``bytes``: what it stands for."""

    token: str
    logprob: float
    bytes: list[int]


class RankedLogprob(TokenLogprob):
    """And its best alternatives."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Shape):
    """Of every token of the answer."""

    content: list[RankedLogprob]
    refusal: None


class CompletionLogprobs(Shape):
    """The older form: a list each."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Choice(Shape):
    """One sample. ``stop_reason``: the stop string or the stop token's id that ended it."""

    index: int
    finish_reason: Finish
    stop_reason: int | str | None
    token_ids: list[int] = Field(default=[], description="with return_token_ids")
    outrider: dict[str, Any] = Field(default={}, description="its steps, with speculation.explain")


class ChatChoice(Choice):
    """One sample of a chat."""

    message: AnswerMessage
    logprobs: ChatLogprobs | None


class CompletionChoice(Choice):
    """One sample of a completion."""

    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: list[int] = Field(default=[], description="with return_token_ids")


class Answered(Shape):
    """What every answer has. ``seed``: the request's, or the one that was drawn for it."""

    id: str
    created: int
    model: str
    usage: Usage
    seed: int
    metrics: dict[str, Any] | None = Field(default=None, description="acceptance, with speculation.metrics")


class ChatCompletion(Answered):
    """The answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_token_ids: list[int] = Field(default=[], description="with return_token_ids")


class Completion(Answered):
    """The continuation of texts."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class Tokens(Shape):
    """A prompt's tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None


class Text(Shape):
    """The text of tokens."""

    prompt: str


_Errors = dict[int | str, dict[str, Any]]
_SAID: dict[int | str, str] = {
    400: "A field is unknown or impossible, or the prompt does not fit",
    401: "The key is wrong or missing",
    404: "Another model, or no such path",
    408: "The request's time is over",
    413: "The body is too long",
    429: "Too many requests are waiting; Retry-After says for how long",
    503: "The server is ending, or its engine has failed",
    "default": "Any other error",
}
_DATA = {"type": "string", "description": "a chunk of the answer in JSON, as OpenAI's, or [DONE]"}
_EVENTS = {"schema": {"type": "object", "properties": {"data": _DATA}, "description": "an event, with stream"}}


def errors(*statuses: int) -> _Errors:
    """``responses`` of a route that may answer with these, and with others that are not told apart."""
    told: tuple[int | str, ...] = (*statuses, "default")
    return {status: {"model": ErrorBody, "description": _SAID[status]} for status in told}


def answers(kind: type[Answered]) -> _Errors:
    """``responses`` of a route that answers with ``kind``, or with a stream of its parts."""
    whole = {"model": kind, "description": "The answer", "content": {"text/event-stream": _EVENTS}}
    return {200: whole, **errors(400, 401, 404, 408, 413, 429, 503)}
