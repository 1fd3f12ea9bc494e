"""What goes wrong, as OpenAI's error objects: a status, and a body that says which field and why."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from outrider.errors import ConfigError, GrammarError, ModelError, OutriderError, RequestError
from outrider.server.runner import Busy, Stopped, TimedOut
from outrider.server.schemas import REFUSED

_STATUS: tuple[tuple[type[OutriderError], int, str], ...] = (
    (Busy, 429, "rate_limit_error"),
    (Stopped, 503, "service_unavailable_error"),
    (TimedOut, 408, "timeout_error"),
    (RequestError, 400, "invalid_request_error"),
    (GrammarError, 400, "invalid_request_error"),
    (ConfigError, 400, "invalid_request_error"),
    (ModelError, 400, "invalid_request_error"),
)


def problem(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body of an error."""
    for kind, status, name in _STATUS:
        if isinstance(error, kind):
            return status, body(str(error), name, status)
    return 500, body(f"{type(error).__name__}: {error}", "internal_error", 500)


def body(message: str, kind: str, status: int, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    message = message.encode("utf-8", "replace").decode()  # it may quote half a character
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def install(app: FastAPI) -> None:
    """Let every error of ``app`` be answered so."""

    @app.exception_handler(OutriderError)
    async def _known(request: Request, error: OutriderError) -> JSONResponse:
        status, content = problem(error)
        headers = {"Retry-After": f"{error.retry_after:.0f}"} if isinstance(error, Busy) else None
        return JSONResponse(content, status, headers)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        no_object = first["loc"] == ("body",) and first["type"] != "string_unicode"
        if first["type"] == "json_invalid" or no_object:
            said = "the body is no JSON object: send one, with the header 'Content-Type: application/json'"
            return JSONResponse(body(said, "invalid_request_error", 400), 400)
        where = ".".join(str(part) for part in first["loc"] if part != "body") or None
        if first["type"] == "extra_forbidden":
            said = f"{where} is refused: {REFUSED[where]}" if where in REFUSED else f"unknown field {where!r}"
        else:
            message = first["msg"].removeprefix("Value error, ")
            said = message if where is None else f"{where}: {message}"
        return JSONResponse(body(said, "invalid_request_error", 400, where), 400)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        kind = "authentication_error" if error.status_code == 401 else "invalid_request_error"
        said = _explained(request, error)
        return JSONResponse(body(said, kind, error.status_code), error.status_code, error.headers)


def _explained(request: Request, error: HTTPException) -> str:
    """The detail of an error, and where it is the framework's own phrase, what to do instead."""
    path, allowed = request.url.path, (error.headers or {}).get("Allow")
    if error.detail == HTTPStatus.NOT_FOUND.phrase:
        return f"there is no {path} here: /openapi.json lists all paths"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and allowed:
        return f"{path} takes {allowed}, not {request.method}"
    return str(error.detail)
