"""``/v1/completions``: the continuation of a text, or of several, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Depends
from fastapi import Request as HttpRequest
from starlette.concurrency import run_in_threadpool

from outrider.engine.requests import Request
from outrider.errors import RequestError
from outrider.server import answers, objects, problems, prompts
from outrider.server.answers import Head
from outrider.server.sampling import completion_params
from outrider.server.schemas import CompletionRequest
from outrider.server.service import Service
from outrider.server.stream import DONE, Answer, EventStream, sse


def router(service: Service) -> APIRouter:
    """Its route."""
    routes = APIRouter()

    @routes.post("/v1/completions", responses=objects.answers(objects.Completion))
    async def completions(body: CompletionRequest, http: HttpRequest, salt: str = Depends(service.salt)) -> Any:
        """Continue a text, or several."""
        service.check_model(body.model)
        params = completion_params(body, service.defaults)
        most, requests = service.runner.max_waiting + service.llm.max_num_seqs, []
        if len(body.prompts) > most:
            raise RequestError(f"prompt: {len(body.prompts)} at once are more than can wait: send at most {most}")
        for given in body.prompts:
            prompt = await run_in_threadpool(prompts.of_completion, service.llm, body, given)
            requests.append(await service.request(body, prompt, params, salt))
        head = service.head("cmpl", "text_completion", body, requests[0], params)
        answer = service.answer(http, head, requests, body.timeout)
        if body.stream:
            return EventStream(_stream(answer, head, body, requests))
        outputs = await answer.whole(http)
        return answers.completion_object(head, outputs, body.echo)

    return routes


async def _stream(
    answer: Answer, head: Head, body: CompletionRequest, requests: Sequence[Request]
) -> AsyncGenerator[str]:
    shown: dict[tuple[int, int], int] = {}
    outputs = []
    tally = answers.Tally(body.stream_options, sum(len(request.prompt_token_ids) for request in requests))
    try:
        for number, request in enumerate(requests if body.echo else ()):
            text = answers.prompt_text(head.tokenizer, request.prompt, request.prompt_token_ids)
            for index in range(body.n):
                shown[number, index] = len(text)
                choice = {"index": number * body.n + index, "text": text, "logprobs": None, "finish_reason": None}
                ids = answers.prompt_ids(head, request.prompt_token_ids)
                yield sse(head.wrap([choice | ids], **tally.add(0)))
        async for number, event in answer:
            for chunk in event.chunks:
                key = number, chunk.index
                counts = tally.add(len(chunk.token_ids))
                own = None if key in shown else requests[number].prompt_token_ids
                first, offset = number * body.n, shown.get(key, 0)
                yield sse(answers.completion_chunk(head, chunk, first, offset, own, **counts))
                shown[key] = shown.get(key, 0) + len(chunk.text)
            if event.error is not None:
                yield sse(problems.problem(event.error)[1])
            elif event.output is not None:
                outputs.append(event.output)
        if body.wants_closing:
            yield sse(head.wrap([], **answers.closing(head, outputs)))
        yield DONE
    finally:
        answer.close()
