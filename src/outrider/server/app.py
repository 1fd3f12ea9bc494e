"""The application: all routes, and what holds for each of them."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest

from outrider import __version__
from outrider.server import problems
from outrider.server.limits import Gate
from outrider.server.routes import chat, completions, health, metrics, models, pages, tokenize
from outrider.server.runner import Runner
from outrider.server.service import ServerSettings, Service
from outrider.server.stream import Gone
from outrider.server.watching import Watching
from outrider.telemetry.calls import Watcher

_ROUTES = (health, metrics, models, chat, completions, tokenize)


def create_app(runner: Runner, settings: ServerSettings, watchers: Sequence[Watcher] = ()) -> FastAPI:
    """The application over ``runner``. ``watchers`` are told of calls that have ended."""
    service = Service(runner, settings)
    about = "Lossless speculative decoding, OpenAI's way."
    # the framework's own pages of the API load scripts from elsewhere: ours is among the pages
    app = FastAPI(title="Outrider", version=__version__, description=about, docs_url=None, redoc_url=None)
    problems.install(app)
    app.add_middleware(Gate, max_bytes=settings.max_request_bytes, admit=service.salt)
    app.add_middleware(Watching, watchers=(runner.counters.called, *watchers))

    @app.exception_handler(Gone)
    async def _left(http: HttpRequest, error: Gone) -> Response:
        return Response(status_code=499)  # nobody reads it

    for kind in (*_ROUTES, pages) if settings.pages else _ROUTES:
        app.include_router(kind.router(service))
    return app
