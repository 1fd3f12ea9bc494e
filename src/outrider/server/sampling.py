"""From a client's fields to sampling parameters."""

from __future__ import annotations

import secrets
from typing import Any

from outrider.config import SamplingParams, SpeculationParams, StructuredOutputs
from outrider.errors import RequestError
from outrider.server.conversation import NamedTool
from outrider.server.schemas import ChatRequest, CompletionRequest, Sampling

_AS_THEY_ARE = (
    *("n", "presence_penalty", "frequency_penalty", "bad_words", "allowed_token_ids", "min_tokens", "stop"),
    *("stop_token_ids", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "priority"),
)
_OF_THE_MODEL = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")


def chat_params(body: ChatRequest, defaults: SamplingParams) -> SamplingParams:
    """Of a chat; ``defaults``: the model's own."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise RequestError("max_tokens and max_completion_tokens are both given: leave out max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs: set logprobs to true")
    if body.tool_choice not in (None, "none") and not body.tools:
        raise RequestError("tool_choice needs tools: name them, or leave it out")
    if isinstance(body.tool_choice, NamedTool) and not body.forced:
        raise RequestError(f"tool_choice: {body.tool_choice.function.name!r} is none of the tools: name one of them")
    most = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    prediction = None if body.prediction is None else body.prediction.text
    return _params(body, defaults, max_tokens=most, logprobs=logprobs, prediction=prediction)


def completion_params(body: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """Of a completion."""
    return _params(body, defaults, max_tokens=body.max_tokens, logprobs=body.logprobs)


def _params(body: Sampling, defaults: SamplingParams, **own: Any) -> SamplingParams:
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs a stream: set stream to true")
    values = {name: getattr(body, name) for name in _AS_THEY_ARE}
    for name in _OF_THE_MODEL:
        given = getattr(body, name)
        values[name] = getattr(defaults, name) if given is None else given
    values["logit_bias"] = None if body.logit_bias is None else _by_id(body.logit_bias)
    values["speculation"] = _speculation(body.speculation, defaults.speculation)
    values["structured_outputs"] = _structured(body)
    values["seed"] = secrets.randbits(48) if body.seed is None else body.seed
    return SamplingParams(**values, **own)


def _speculation(given: SpeculationParams | None, default: SpeculationParams | None) -> SpeculationParams | None:
    if given is None or default is None or given.metrics is not None:
        return given or default
    return given.model_copy(update={"metrics": default.metrics})


def _structured(body: Sampling) -> StructuredOutputs | None:
    asked = body.response_format
    if asked is None or asked.type == "text":
        return body.structured_outputs
    if body.structured_outputs is not None:
        raise RequestError("response_format and structured_outputs both say what the answer is: leave out one")
    if asked.type == "json_object":
        return StructuredOutputs(json_object=True)
    if asked.json_schema is None:
        raise RequestError("response_format.json_schema is missing: give the schema, or ask for a json_object")
    return StructuredOutputs(json=asked.json_schema.schema_)


def _by_id(bias: dict[str, float]) -> dict[int, float]:
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError:
        raise RequestError('logit_bias: its keys are token ids, such as {"50256": -100}') from None
