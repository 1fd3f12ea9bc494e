"""``/health`` (``/ping``), ``/ready`` and ``/version``: for load balancers and for those who look after the server."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from outrider import __version__
from outrider.server.runner import Runner
from outrider.server.service import Service

_STALLED = 60.0  # seconds of one step after which the engine counts as stuck


def trouble(runner: Runner) -> str:
    """Why the engine does not serve, or nothing."""
    taken = runner.step_seconds()
    return runner.failure or (f"a step takes {taken:.0f} s already" if taken > _STALLED else "")


def router(service: Service) -> APIRouter:
    """Their routes; no key is asked for."""
    routes, runner = APIRouter(), service.runner

    @routes.get("/ping")
    @routes.get("/health")
    async def health() -> JSONResponse:
        """The engine's thread is there and steps."""
        reason = trouble(runner)
        return JSONResponse({"status": "failed" if reason else "ok", "reason": reason}, 503 if reason else 200)

    @routes.get("/ready")
    async def ready() -> JSONResponse:
        """Requests are taken."""
        return JSONResponse({"ready": runner.open}, 200 if runner.open else 503)

    @routes.get("/version")
    async def version() -> dict[str, str]:
        """Which Outrider answers."""
        return {"version": __version__}

    return routes
