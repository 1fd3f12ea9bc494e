"""``/``, ``/dashboard`` and ``/docs``: the playground, the dashboard and the API, plain files of this package."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter, HTTPException, Response

from outrider.server.service import Service

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def router(service: Service) -> APIRouter:
    """Their routes; no key is asked for, since the pages hold nothing: what they show they ask the API for."""
    routes = APIRouter(include_in_schema=False)
    files = {entry.name: entry.read_bytes() for entry in (resources.files("outrider.server") / "pages").iterdir()}

    def answer(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, f"no page is called {name!r}")
        return Response(files[name], media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)

    @routes.get("/")
    async def playground() -> Response:
        return answer("playground.html")

    @routes.get("/dashboard")
    async def dashboard() -> Response:
        return answer("dashboard.html")

    @routes.get("/docs")
    async def api() -> Response:
        return answer("api.html")

    @routes.get("/pages/{name}")
    async def part(name: str) -> Response:
        return answer(name)

    return routes
