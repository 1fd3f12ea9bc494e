"""``/v1/chat/completions``: the answer to a conversation, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Depends
from fastapi import Request as HttpRequest
from starlette.concurrency import run_in_threadpool

from outrider.outputs import RequestOutput
from outrider.server import answers, objects, problems, prompts
from outrider.server.answers import Head
from outrider.server.parsers.answer import AnswerParser
from outrider.server.reading import Reading
from outrider.server.sampling import chat_params
from outrider.server.schemas import ChatRequest
from outrider.server.service import Service
from outrider.server.stream import DONE, Answer, EventStream, sse


def router(service: Service) -> APIRouter:
    """Its route."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions", responses=objects.answers(objects.ChatCompletion))
    async def chat(body: ChatRequest, http: HttpRequest, salt: str = Depends(service.salt)) -> Any:
        """Answer a conversation."""
        service.check_model(body.model)
        service.check_prediction(body)
        params = chat_params(body, service.defaults)
        text, prompt = await run_in_threadpool(prompts.of_chat, service.llm, body)
        reading = Reading(service.formats, body, text)
        params = reading.params(params)
        request = await service.request(body, prompt, params, salt)
        head = service.head("chatcmpl", "chat.completion", body, request, params, _echoed(body))
        answer = service.answer(http, head, [request], body.timeout)
        if body.stream:
            events = _stream(answer, head, body, request.prompt_token_ids, reading)
            return EventStream(events)
        (output,) = await answer.whole(http)
        return await run_in_threadpool(_whole, head, output, reading)

    return routes


def _echoed(body: ChatRequest) -> str:
    last = body.messages[-1]
    return last.text if body.echo and last.role == "assistant" else ""


def _whole(head: Head, output: RequestOutput, reading: Reading) -> dict[str, Any]:
    parts = [reading.parser().feed(sample.text, last=True) for sample in output.outputs]
    return answers.chat_object(head, output, parts, **reading.details(output))


async def _stream(
    answer: Answer, head: Head, body: ChatRequest, prompt_ids: Sequence[int], reading: Reading
) -> AsyncGenerator[str]:
    parsers: dict[int, AnswerParser] = {}
    tally = answers.Tally(body.stream_options, len(prompt_ids))
    try:
        async for _, event in answer:
            for chunk in event.chunks:
                if chunk.index not in parsers:
                    parsers[chunk.index] = reading.parser()
                    yield sse(answers.chat_first(head, chunk.index, prompt_ids, **tally.add(0)))
                parser = parsers[chunk.index]
                part = parser.feed(chunk.text, last=chunk.finish_reason is not None)
                usage = tally.add(len(chunk.token_ids))
                yield sse(answers.chat_chunk(head, chunk, part, parser.num_calls > 0, **usage))
            if event.error is not None:
                yield sse(problems.problem(event.error)[1])
            elif event.output is not None and body.wants_closing:
                details = await run_in_threadpool(reading.details, event.output)
                closing = answers.closing(head, [event.output], **details)
                yield sse(head.wrap([], "chat.completion.chunk", **closing))
        yield DONE
    finally:
        answer.close()
