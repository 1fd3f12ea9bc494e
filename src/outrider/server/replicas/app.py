"""The Ray Serve application: a gateway, and behind it replicas that each are a whole server.

The gateway hands requests on as they are: every route, error and API key is that of a server in one process.
``serve run`` takes ``outrider.server.replicas.app:build`` with ``Options`` as arguments.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray import serve
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.server import problems
from outrider.server.app import create_app
from outrider.server.records import Records
from outrider.server.replicas.call import Call, Head, answer
from outrider.server.replicas.metrics import join
from outrider.server.replicas.prefixes import names
from outrider.server.replicas.router import PrefixRouter
from outrider.server.routes.health import trouble
from outrider.server.runner import Runner
from outrider.server.service import ServerSettings
from outrider.server.stream import DONE, sse

APP_NAME = "outrider"
_TRIES = 3  # replicas that may die of one request before it is given up
_PATIENCE = 5.0  # seconds for all replicas to tell their metrics
_MANY = 100_000  # the gateway holds whatever comes; the replicas say when there is too much


class Options(BaseModel):
    """``llm``: arguments of ``LLM`` beside the model. ``server``: fields of ``ServerSettings``; the model's name is its
    own without one. ``replicas``: how many, or ``autoscaling_config``: Ray's keys, as min_replicas, max_replicas,
    target_ongoing_requests. ``ray_actor_options``: what a replica gets of a machine, as Ray's keys num_cpus and
    num_gpus. ``gateways``: how many take requests. ``busy_margin``: requests that a replica may have more than the
    idlest and still be chosen for its cache. The rest is as for `outrider serve`."""

    model_config = ConfigDict(extra="forbid")

    model: str
    llm: dict[str, Any] = Field(default_factory=dict)
    server: dict[str, Any] = Field(default_factory=dict)
    max_waiting: int = Field(512, ge=1)
    drain_seconds: float = Field(30.0, ge=0.0)
    request_log: Path | None = None
    request_log_text: bool = False
    otlp_endpoint: str | None = None
    replicas: int = Field(1, ge=1)
    autoscaling_config: dict[str, Any] | None = None
    ray_actor_options: dict[str, Any] = Field(default_factory=dict)
    gateways: int = Field(1, ge=1)
    busy_margin: int = Field(4, ge=0)

    def settings(self) -> ServerSettings:
        """Those of each replica. Raises ConfigError for fields that there are not."""
        try:
            return ServerSettings(**{"model": self.model, **self.server})
        except TypeError as error:
            raise ConfigError(f"server: {error}") from None


class Replica:
    """A server without a socket: one engine, one application."""

    def __init__(self, options: Options) -> None:
        self._llm = LLM(options.model, **options.llm)
        self._runner = Runner(self._llm, options.max_waiting)
        settings, self._stack = options.settings(), ExitStack()
        records = Records(self._stack, options.request_log, options.request_log_text, options.otlp_endpoint)
        self._app = create_app(self._runner, settings, records.watchers(self._runner.counters, settings.model))
        self._name = serve.get_replica_context().replica_tag.encode()

    async def answer(self, call: Call) -> AsyncIterator[Head | bytes]:
        """The application's answer; its head says which replica it is from."""
        async for part in answer(self._app, call):
            if isinstance(part, Head):
                part.headers.append((b"x-outrider-replica", self._name))
            yield part

    async def metrics(self) -> tuple[str, str]:
        """Its name, and what its `/metrics` says."""
        parts = [part async for part in answer(self._app, Call("GET", "/metrics", b"", [], b""))]
        return self._name.decode(), b"".join(part for part in parts if isinstance(part, bytes)).decode()

    async def check_health(self) -> None:
        """Ray starts another replica instead of one that is in trouble, as `/health` says it."""
        if reason := trouble(self._runner):
            raise RuntimeError(reason)

    def __del__(self) -> None:
        self._runner.close()
        self._stack.close()
        self._llm.close()


class Gateway:
    """Takes HTTP requests and hands them to a replica; to another one if that dies before the answer begins."""

    def __init__(self, replicas: DeploymentHandle, max_request_bytes: int) -> None:
        self._all, self._replicas = replicas, replicas.options(stream=True, method_name="answer")
        self._max_bytes = max_request_bytes

    async def __call__(self, http: Request) -> Response:
        scope = http.scope
        if (http.method, scope["path"].removeprefix(scope["root_path"])) == ("GET", "/metrics"):
            return await self._metrics()
        body = await self._body(http)
        prefix = names(body, http.headers.get("authorization", "").encode())
        call = Call(http.method, scope["path"], scope["query_string"], http.headers.raw, body, prefix,
                    scope["root_path"])  # fmt: skip
        for _ in range(_TRIES):
            parts = self._replicas.remote(call)
            try:
                head = await anext(parts)
                first = await anext(parts, b"")  # of a stream, nothing is promised before its first event
            except RayActorError:
                continue
            events = b"text/event-stream" in dict(head.headers).get(b"content-type", b"")
            response = StreamingResponse(_rest(first, parts, events), head.status)
            response.raw_headers = head.headers
            return response
        said = f"{_TRIES} replicas in a row died before they answered: see their logs in Ray's dashboard"
        return JSONResponse(problems.body(said, "service_unavailable_error", 503), 503)

    async def _body(self, http: Request) -> bytes:
        """A body; of one that is too long as much as makes a replica refuse it."""
        body = bytearray()
        async for part in http.stream():
            body += part
            if len(body) > self._max_bytes:
                break
        return bytes(body)

    async def _metrics(self) -> Response:
        told = await self._all.broadcast("metrics").results_async(timeout_s=_PATIENCE, return_exceptions=True)
        pages = dict(page for page in told if not isinstance(page, BaseException))  # of those that are alive
        return Response(join(pages), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


async def _rest(first: bytes, parts: AsyncIterator[bytes], events: bool) -> AsyncIterator[bytes | str]:
    yield first
    try:
        async for part in parts:
            yield part
    except RayActorError:
        if not events:  # half of a body cannot be mended: let the client see that the connection breaks
            raise
        said = "the replica that answered has died: send the request again"
        yield sse(problems.body(said, "service_unavailable_error", 503))
        yield DONE


def build(given: Options | Mapping[str, Any]) -> Application:
    """The application for ``serve.run``, and for Ray's own commands, which give what a file says. Raises ConfigError
    for options that Ray refuses."""
    options = Options.model_validate(given)
    settings = options.settings()
    num_seqs = options.llm.get("max_num_seqs", 16)
    scale: dict[str, Any] = {"num_replicas": options.replicas}
    if options.autoscaling_config is not None:
        scale = {"autoscaling_config": {"target_ongoing_requests": num_seqs, **options.autoscaling_config}}
    router = RequestRouterConfig(
        request_router_class=PrefixRouter, request_router_kwargs={"margin": options.busy_margin}
    )
    try:
        replicas = serve.deployment(
            Replica,
            max_ongoing_requests=num_seqs + options.max_waiting,  # past it the replica's own queue is full too
            ray_actor_options=options.ray_actor_options,
            request_router_config=router,
            health_check_period_s=3,
            graceful_shutdown_wait_loop_s=0.5,
            graceful_shutdown_timeout_s=options.drain_seconds,
            **scale,
        )
    except (ValidationError, ValueError, TypeError) as error:
        raise ConfigError(f"autoscaling_config or ray_actor_options: {error}") from None
    gateway = serve.deployment(
        Gateway,
        num_replicas=options.gateways,
        max_ongoing_requests=_MANY,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_wait_loop_s=0.5,
    )
    return gateway.bind(replicas.bind(options), settings.max_request_bytes)
