"""The gateway over scripted replicas: what dies before it answers is asked for again, what dies later is an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'outrider[ray]'")

from pydantic import ValidationError
from ray.exceptions import RayActorError
from starlette.requests import Request

from outrider.errors import ConfigError
from outrider.server.replicas.app import Gateway, Options, build
from outrider.server.replicas.call import Call, Head

EVENTS = Head(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
JSON = Head(200, [(b"content-type", b"application/json"), (b"content-length", b"2")])


class Scripted:
    """A handle whose calls give one script each; None in it is the replica's death."""

    def __init__(self, *scripts: Sequence[Head | bytes | None]) -> None:
        self.scripts, self.calls = list(scripts), list[Call]()

    def options(self, **options: Any) -> Scripted:
        assert options == {"stream": True, "method_name": "answer"}
        return self

    async def remote(self, call: Call) -> AsyncIterator[Head | bytes]:
        self.calls.append(call)
        for part in self.scripts.pop(0):
            if part is None:
                raise RayActorError
            yield part


def ask(replicas: Scripted, body: Sequence[bytes] = (b'{"prompt": "x"}',)) -> tuple[int, bytes]:
    """Status and body of an answer."""
    sent: list[Any] = []

    async def run() -> None:
        asked = iter({"type": "http.request", "body": part, "more_body": part is not body[-1]} for part in body)

        async def receive() -> Any:
            return next(asked, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", b"Bearer k")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
        scope["root_path"] = ""
        response = await Gateway(replicas, 20)(Request(scope, receive))  # type: ignore[arg-type]
        await response(scope, receive, send)

    asyncio.run(run())
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_an_answer_is_passed_on_whole() -> None:
    replicas = Scripted([EVENTS, b"a", b"b"])
    assert ask(replicas) == (200, b"ab")
    (call,) = replicas.calls
    assert (call.method, call.path, call.body) == ("POST", "/v1/completions", b'{"prompt": "x"}')
    assert len(call.prefix) == 1


def test_no_more_of_a_body_is_read_than_is_refused() -> None:
    replicas = Scripted([Head(413, [])])
    assert ask(replicas, [b"12345678901", b"2345678901", b"more"])[0] == 413
    assert replicas.calls[0].body == b"123456789012345678901"


def test_an_answer_without_a_body() -> None:
    assert ask(Scripted([Head(204, [])])) == (204, b"")


@pytest.mark.parametrize("death", [[None], [EVENTS, None]])
def test_a_replica_that_dies_before_its_first_event_is_replaced(death: list[Head | None]) -> None:
    assert ask(Scripted(death, death, [EVENTS, b"a"])) == (200, b"a")


def test_a_request_that_kills_is_given_up() -> None:
    status, body = ask(Scripted([None], [None], [None]))
    assert status == 503
    assert b"service_unavailable_error" in body


def test_a_stream_whose_replica_dies_ends_with_an_error() -> None:
    status, body = ask(Scripted([EVENTS, b"data: 1\n\n", None]))
    assert status == 200
    assert body.startswith(b'data: 1\n\ndata: {"error"')
    assert body.endswith(b"data: [DONE]\n\n")


def test_half_a_body_breaks_the_connection() -> None:
    with pytest.raises(RayActorError):
        ask(Scripted([JSON, b"{", None]))


def test_fields_of_the_server_that_there_are_not_are_named() -> None:
    with pytest.raises(ConfigError, match=r"server: .*'api_key'"):
        build(Options(model="m", server={"api_key": "k"}))


def test_what_a_file_says_is_checked() -> None:
    build({"model": "m", "llm": {"max_num_seqs": 2}, "autoscaling_config": {"min_replicas": 1, "max_replicas": 2}})
    with pytest.raises(ValidationError, match="replica"):
        build({"model": "m", "replica": 2})


def test_options_that_ray_refuses_are_named() -> None:
    with pytest.raises(ConfigError, match="autoscaling_config or ray_actor_options"):
        build(Options(model="m", autoscaling_config={"min_replicas": 3, "max_replicas": 1}))
