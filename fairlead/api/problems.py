"""Turns every error into an RFC 9457 problem document, without stack traces."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from fairlead.api.request_ids import request_id
from fairlead.control.observability import live_metrics, metric_families
from fairlead.errors import FairleadError, Forbidden, InvalidSpec, RateLimited, Unauthenticated

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
SHOWN_CHARS = 500  # of a client's value that an error repeats


class Problem(BaseModel):
    """Why a request failed (RFC 9457): ``code`` for programs, ``detail`` and ``fix`` for people."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    value: Any = None
    fix: str | None = None
    request_id: str | None = None


class MalformedBody(InvalidSpec):
    """The body is not even JSON."""

    status = 400


class TooFast(RateLimited):
    """A rate limit is reached; carries the time to wait."""

    def __init__(self, message: str, *, wait_s: float, limit: str = "rate") -> None:
        super().__init__(message, fix=f"try again in {wait_s:.1f} s, or send fewer requests at once")
        self.wait_s = wait_s
        self.limit = limit  # rate, streams or logins


def problem_response(error: FairleadError) -> Response:
    """The error as an HTTP answer with the headers of its status."""
    headers: dict[str, str] = {}
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="fairlead"'
    if isinstance(error, TooFast):
        headers["Retry-After"] = str(max(1, math.ceil(error.wait_s)))
        live_metrics.count(metric_families.LIMITED, error.limit)
    return _answer(error.problem(), headers)


def failure_response(error_id: str) -> Response:
    """The answer to an internal error: an id under which the platform's log has the details."""
    return _answer(
        {
            "type": "urn:fairlead:error:internal",
            "title": "InternalError",
            "status": 500,
            "detail": f"internal error; the platform's log has details under {error_id}",
            "code": "internal",
            "error_id": error_id,
        }
    )


def install(app: FastAPI) -> None:
    """Register the error handlers that answer with problem documents."""
    app.add_exception_handler(FairleadError, _on_fairlead_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)


async def _on_fairlead_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FairleadError)
    if isinstance(error, Forbidden) and request.method not in ("GET", "HEAD"):
        await _audit_refusal(request, error)
    return problem_response(error)


async def _audit_refusal(request: Request, error: Forbidden) -> None:
    """Write a forbidden attempt to change something to the audit log."""
    who, route = getattr(request.state, "who", None), request.scope.get("route")
    if who is None:
        return
    attempt = f"{request.method} {getattr(route, 'path', '')}"
    try:
        await request.app.state.context.platform.refused(who, attempt, f"{request.method} {request.url.path}", error)
    except FairleadError as trouble:
        log.warning("refusal missing in the audit log", attempt=attempt, error=str(trouble))


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_response(invalid_request(error.errors()))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Errors of the router: unknown route or method."""
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = f"no route {request.url.path[:SHOWN_CHARS]}; /api/v1/openapi.json lists all routes"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        detail = f"{request.url.path[:SHOWN_CHARS]} does not support {request.method}"
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods(request))
    code = phrase.lower().replace(" ", "-")
    document = {"type": f"urn:fairlead:error:{code}", "title": phrase, "status": error.status_code}
    return _answer(document | {"detail": detail, "code": code}, headers)


def _methods(request: Request) -> list[str]:
    """The methods of a path, from the OpenAPI document: the router names only those of the first matching route."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    fitting = (path for path in paths if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), request.url.path))
    return sorted({method.upper() for path in fitting for method in paths[path]})


def invalid_request(errors: Sequence[Any]) -> InvalidSpec:
    """The first error in the parameters of a request, with field, value and fix."""
    first: Mapping[str, Any] = errors[0]
    field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    message, value = str(first["msg"]).removeprefix("Value error, "), first.get("input")
    fix = "see /api/v1/openapi.json for the valid values"
    if first["type"] == "extra_forbidden":
        message, fix = "unknown parameter", "remove it; see /api/v1/openapi.json for the parameters"
    elif first["type"] == "missing":
        message, value, fix = "is required", None, f"add {field}"
    elif isinstance(value, str | int | float):
        message = f"{value!r}: {message}"
    shown = value if isinstance(value, str | int | float) else None
    return InvalidSpec(message, field=field, value=shown, fix=fix)


def _answer(document: dict[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    shown = {key: _short(value) for key, value in document.items()}
    if (asked := request_id.get()) is not None:
        shown["request_id"] = asked
    body = msgspec.json.encode(shown, enc_hook=str)
    return Response(body, status_code=document["status"], headers=headers, media_type=MEDIA_TYPE)


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > SHOWN_CHARS:
        return value[:SHOWN_CHARS] + "..."
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return str(value)[:SHOWN_CHARS]
    return value
