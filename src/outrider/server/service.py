"""What all routes share: the engine's runner, who may call, and how a body becomes a request."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import HTTPException
from fastapi import Request as HttpRequest
from starlette.concurrency import run_in_threadpool

from outrider.config import MetricsLevel, SamplingParams, SpeculationParams
from outrider.drafters.registry import follows_prediction
from outrider.engine.requests import Request
from outrider.errors import ConfigError, RequestError
from outrider.server.answers import Head
from outrider.server.parsers.formats import AUTO, Formats
from outrider.server.runner import Runner
from outrider.server.schemas import ChatRequest, Sampling
from outrider.server.stream import Answer
from outrider.server.watching import call_of


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """``model``: the name that clients use; ``api_keys``: those that are let in, none for everyone;
    ``metrics_prefix``: what the names at ``/metrics`` begin with; ``max_request_bytes``: of a body;
    ``request_metrics``: of acceptance, in answers to requests that do not say (``speculation.metrics``); ``pages``:
    whether there are the playground and the dashboard;
    ``tool_call_parser``, ``reasoning_parser``: as ``Formats.choose`` takes them."""

    model: str
    api_keys: Sequence[str] = field(default=())
    metrics_prefix: str = "outrider:"
    max_request_bytes: int = 8 * 2**20
    request_metrics: MetricsLevel = "none"
    pages: bool = True
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO

    def __post_init__(self) -> None:
        """Raises ConfigError for an empty key, which would let in whoever sends none."""
        if not all(key.strip() for key in self.api_keys):
            raise ConfigError(
                "--api-key (or OUTRIDER_API_KEY) is empty: give a key, or leave it out to let everyone in"
            )


class Service:
    """The engine's runner, its settings, and what is asked of them at every call."""

    def __init__(self, runner: Runner, settings: ServerSettings) -> None:
        self.runner, self.llm, self.settings = runner, runner.llm, settings
        self.tokenizer = self.llm.get_tokenizer()
        self.formats = Formats.choose(self.tokenizer, settings.tool_call_parser, settings.reasoning_parser)
        own = SpeculationParams(metrics=settings.request_metrics)
        self.defaults = self.llm.get_default_sampling_params().model_copy(update={"speculation": own})

    def salt(self, http: HttpRequest) -> str:
        """Whose cached prefixes a caller shares: those of its key. Raises HTTPException 401 for a wrong key."""
        keys = self.settings.api_keys
        if not keys:
            return ""
        scheme, _, key = http.headers.get("authorization", "").partition(" ")
        given = key.strip().encode() if scheme.lower() == "bearer" else b""
        if not sum(secrets.compare_digest(given, own.encode()) for own in keys):  # all are compared: no time is told
            raise HTTPException(401, "wrong or missing API key: send it as 'Authorization: Bearer KEY'")
        return hashlib.sha256(given).hexdigest()[:16]

    def check_model(self, model: str | None) -> None:
        """Raise HTTPException 404 for another model's name."""
        if model not in (None, self.settings.model):
            raise HTTPException(404, f"model {model!r} is not served here; served: {self.settings.model!r}")

    def check_prediction(self, body: ChatRequest) -> None:
        """Raise RequestError for a prediction that the method which the request names does not read."""
        name = body.speculation.method if body.speculation is not None else None
        config = self.llm.methods.get(name or "")
        if body.prediction is not None and config is not None and not follows_prediction(config):
            raise RequestError(f"prediction is not read by speculation.method={name!r}: leave one of the two out")

    async def request(self, body: Sampling, prompt: Mapping[str, Any], params: SamplingParams, salt: str) -> Request:
        """A request ready to be queued; what the tokenizer has to do is done beside the loop."""
        name, own = uuid.uuid4().hex, salt + (body.cache_salt or "")
        request = await run_in_threadpool(self.llm.request, name, prompt, params, cache_salt=own)
        request.charge(salt)  # not by its cache_salt, of which a caller may make up as many as it likes
        return request

    def answer(
        self, http: HttpRequest, head: Head, requests: Sequence[Request], timeout: float | None = None
    ) -> Answer:
        """Queue ``requests`` of one call. Raises what ``Runner.submit`` raises, and then none of them runs."""
        call = call_of(http)
        call.answer_id, call.requests = head.answer_id, requests
        return Answer(self.runner, requests, timeout)

    def head(
        self, prefix: str, kind: str, body: Sampling, request: Request, params: SamplingParams, before: str = ""
    ) -> Head:
        """What all objects of the answer to ``request`` share."""
        return Head(
            f"{prefix}-{body.request_id or request.request_id}",
            self.settings.model,
            kind,
            self.tokenizer,
            num_logprobs=params.logprobs or 0,
            shows_ids=body.return_token_ids,
            names_ids=body.return_tokens_as_token_ids,
            before=before,
            seed=request.seed,
            metrics=(params.speculation and params.speculation.metrics) or "none",
        )
