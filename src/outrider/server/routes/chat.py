"""``/v1/chat/completions``: the answer to a conversation, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Depends
from fastapi import Request as HttpRequest
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from outrider.server import answers, problems, prompts
from outrider.server.answers import Head
from outrider.server.sampling import chat_params
from outrider.server.schemas import ChatRequest
from outrider.server.service import Service
from outrider.server.stream import DONE, Answer, sse


def router(service: Service) -> APIRouter:
    """Its route."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def chat(body: ChatRequest, http: HttpRequest, salt: str = Depends(service.salt)) -> Any:
        """Answer a conversation."""
        service.check_model(body.model)
        service.check_prediction(body)
        params = chat_params(body, service.defaults)
        prompt = await run_in_threadpool(prompts.of_chat, service.llm, body)
        request = await service.request(body, prompt, params, salt)
        head = service.head("chatcmpl", "chat.completion", body, request, params, _echoed(body))
        answer = service.answer(http, head, [request], body.timeout)
        if body.stream:
            return StreamingResponse(
                _stream(answer, head, body, request.prompt_token_ids), media_type="text/event-stream"
            )
        (output,) = await answer.whole(http)
        return answers.chat_object(head, output)

    return routes


def _echoed(body: ChatRequest) -> str:
    last = body.messages[-1]
    return str(last.plain()["content"]) if body.echo and last.role == "assistant" else ""


async def _stream(answer: Answer, head: Head, body: ChatRequest, prompt_ids: Sequence[int]) -> AsyncIterator[str]:
    begun: set[int] = set()
    tally = answers.Tally(body.stream_options, len(prompt_ids))
    try:
        async for _, event in answer:
            for chunk in event.chunks:
                if chunk.index not in begun:
                    begun.add(chunk.index)
                    yield sse(answers.chat_first(head, chunk.index, prompt_ids, **tally.add(0)))
                yield sse(answers.chat_chunk(head, chunk, **tally.add(len(chunk.token_ids))))
            if event.error is not None:
                yield sse(problems.problem(event.error)[1])
            elif event.output is not None and body.wants_closing:
                yield sse(head.wrap([], "chat.completion.chunk", **answers.closing(head, [event.output])))
        yield DONE
    finally:
        answer.close()
