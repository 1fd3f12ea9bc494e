"""The application: routes, and what holds for all of them."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Response
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from outrider import __version__
from outrider.config import SamplingParams
from outrider.engine.requests import Request
from outrider.server import answers, problems
from outrider.server.answers import Head
from outrider.server.runner import Runner
from outrider.server.sampling import chat_params, completion_params
from outrider.server.schemas import ChatRequest, CompletionRequest, Sampling
from outrider.server.stream import DONE, Answer, Gone, sse

_STALLED = 60.0  # seconds of one step after which the engine counts as stuck


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """``model``: the name that clients use; ``api_keys``: those that are let in, none for everyone."""

    model: str
    api_keys: Sequence[str] = field(default=())


class Service:
    """What the routes share."""

    def __init__(self, runner: Runner, settings: ServerSettings) -> None:
        self.llm, self.settings = runner.llm, settings
        self.tokenizer = self.llm.get_tokenizer()
        self.defaults = self.llm.get_default_sampling_params()

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

    def check_model(self, body: Sampling) -> None:
        """Raise HTTPException 404 for another model's name."""
        if body.model not in (None, self.settings.model):
            raise HTTPException(404, f"model {body.model!r} is not served here; served: {self.settings.model!r}")

    async def request(self, prompt: Any, params: SamplingParams, salt: str, **more: Any) -> Request:
        """A request ready to be queued; what the tokenizer has to do is done beside the loop."""
        name = uuid.uuid4().hex
        return await run_in_threadpool(self.llm.request, name, prompt, params, cache_salt=salt, **more)


def create_app(runner: Runner, settings: ServerSettings) -> FastAPI:
    """The application over ``runner``."""
    service = Service(runner, settings)
    app = FastAPI(title="Outrider", version=__version__, description="Lossless speculative decoding, OpenAI's way.")
    problems.install(app)

    @app.exception_handler(Gone)
    async def _left(http: HttpRequest, error: Gone) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.get("/health")
    async def health() -> JSONResponse:
        """The engine's thread is there and steps."""
        stuck = runner.step_seconds() > _STALLED
        reason = runner.failure or (f"a step takes {runner.step_seconds():.0f} s already" if stuck else "")
        return JSONResponse({"status": "failed" if reason else "ok", "reason": reason}, 503 if reason else 200)

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """Requests are taken."""
        return JSONResponse({"ready": runner.open}, 200 if runner.open else 503)

    @app.get("/v1/models")
    async def models(salt: str = Depends(service.salt)) -> dict[str, Any]:
        """The model that is served."""
        own = {"id": settings.model, "object": "model", "created": 0, "owned_by": "outrider"}
        return {"object": "list", "data": [{**own, "max_model_len": service.llm.max_model_len}]}

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, http: HttpRequest, salt: str = Depends(service.salt)) -> Any:
        """Answer a conversation."""
        service.check_model(body)
        params = chat_params(body, service.defaults)
        messages = [message.plain() for message in body.messages]
        request = await service.request(None, params, salt + (body.cache_salt or ""), messages=messages)
        head = Head(f"chatcmpl-{request.request_id}", settings.model, "chat.completion", service.tokenizer,
                    params.logprobs or 0)  # fmt: skip
        answer = Answer(runner, [request], body.timeout)
        if body.stream:
            return StreamingResponse(_chat_stream(answer, head, body), media_type="text/event-stream")
        (output,) = await answer.whole(http)
        return answers.chat_object(head, output)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, http: HttpRequest, salt: str = Depends(service.salt)) -> Any:
        """Continue a text, or several."""
        service.check_model(body)
        params = completion_params(body, service.defaults)
        salt += body.cache_salt or ""
        requests = [await service.request(prompt, params, salt) for prompt in body.prompts]
        name = f"cmpl-{requests[0].request_id}"
        head = Head(name, settings.model, "text_completion", service.tokenizer, params.logprobs or 0)
        answer = Answer(runner, requests, body.timeout)
        if body.stream:
            stream = _completion_stream(answer, head, body, requests)
            return StreamingResponse(stream, media_type="text/event-stream")
        outputs = await answer.whole(http)
        return answers.completion_object(head, outputs, body.echo)

    return app


async def _chat_stream(answer: Answer, head: Head, body: ChatRequest) -> AsyncIterator[str]:
    begun: set[int] = set()
    try:
        async for _, event in answer:
            for chunk in event.chunks:
                if chunk.index not in begun:
                    begun.add(chunk.index)
                    yield sse(answers.chat_first(head, chunk.index))
                yield sse(answers.chat_chunk(head, chunk))
            if event.error is not None:
                yield sse(problems.problem(event.error)[1])
            elif event.output is not None and body.stream_options is not None and body.stream_options.include_usage:
                yield sse(head.wrap([], "chat.completion.chunk", usage=answers.usage([event.output])))
        yield DONE
    finally:
        answer.close()


async def _completion_stream(
    answer: Answer, head: Head, body: CompletionRequest, requests: Sequence[Request]
) -> AsyncIterator[str]:
    shown: dict[tuple[int, int], int] = {}
    outputs = []
    try:
        for number, request in enumerate(requests if body.echo else ()):
            text = answers.prompt_text(head.tokenizer, request.prompt, request.prompt_token_ids)
            for index in range(body.n):
                shown[number, index] = len(text)
                choice = {"index": number * body.n + index, "text": text, "logprobs": None, "finish_reason": None}
                yield sse(head.wrap([choice]))
        async for number, event in answer:
            for chunk in event.chunks:
                key = number, chunk.index
                yield sse(answers.completion_chunk(head, chunk, number * body.n, shown.get(key, 0)))
                shown[key] = shown.get(key, 0) + len(chunk.text)
            if event.error is not None:
                yield sse(problems.problem(event.error)[1])
            elif event.output is not None:
                outputs.append(event.output)
        if body.stream_options is not None and body.stream_options.include_usage:
            yield sse(head.wrap([], usage=answers.usage(outputs)))
        yield DONE
    finally:
        answer.close()
