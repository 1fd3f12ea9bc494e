"""A request that is answered by an application in another process: here, in the same one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from outrider.server.replicas.call import Call, Head, answer

app = FastAPI()
ended: list[str] = []


@app.post("/echo")
async def echo(http: Request, word: str) -> dict[str, str]:
    return {"word": word, "body": (await http.body()).decode(), "key": http.headers["authorization"]}


@app.get("/endless")
async def endless() -> StreamingResponse:
    async def parts() -> AsyncIterator[str]:
        try:
            while True:
                yield "tick"
                await asyncio.sleep(0)
        finally:
            ended.append("stream")

    return StreamingResponse(parts())


@app.get("/waits")
async def waits(http: Request) -> None:
    try:
        await http.receive()
        await http.receive()
    finally:
        ended.append("wait")


@app.get("/broken")
async def broken() -> None:
    raise ValueError("a bug")


async def collect(call: Call) -> tuple[Head, bytes]:
    head, *parts = [part async for part in answer(app, call)]
    assert isinstance(head, Head)
    return head, b"".join(part for part in parts if isinstance(part, bytes))


def get(path: str) -> Call:
    return Call("GET", path, b"", [], b"")


def test_everything_of_a_request_arrives() -> None:
    call = Call("POST", "/echo", b"word=yes", [(b"authorization", b"Bearer k")], b"the body")
    head, body = asyncio.run(collect(call))
    assert (head.status, body) == (200, b'{"word":"yes","body":"the body","key":"Bearer k"}')
    assert (b"content-type", b"application/json") in head.headers


def test_a_mounted_application_knows_its_paths() -> None:
    call = Call("POST", "/llm/echo", b"word=yes", [(b"authorization", b"")], b"", root_path="/llm")
    assert asyncio.run(collect(call))[0].status == 200


def test_errors_of_the_application_are_answers(caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio.run(collect(get("/nowhere")))[0].status == 404
    assert asyncio.run(collect(get("/broken")))[0].status == 500
    assert "GET /broken failed" in caplog.text


def test_parts_come_as_they_are_made_and_a_client_may_leave() -> None:
    async def some() -> list[Head | bytes]:
        parts = answer(app, get("/endless"))
        out = [await anext(parts) for _ in range(4)]
        await parts.aclose()  # type: ignore[attr-defined]
        return out

    ended.clear()
    assert asyncio.run(some())[1:] == [b"tick"] * 3
    assert ended == ["stream"]


def test_a_client_that_leaves_before_the_answer_ends_the_work() -> None:
    async def leave() -> None:
        task = asyncio.create_task(collect(get("/waits")))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    ended.clear()
    asyncio.run(leave())
    assert ended == ["wait"]
