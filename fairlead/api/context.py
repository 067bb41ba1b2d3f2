"""Shared by all routes: the platform, authentication, parsing of bodies, and answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast

import msgspec
from fastapi import Depends, Request, Response, Security
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, ValidationError
from structlog.contextvars import bind_contextvars

from fairlead import json_values
from fairlead.api.cookies import SAFE, require_our_page, session_secret
from fairlead.api.limits import Limits, LoginLimiter, RateLimiter
from fairlead.api.problems import MEDIA_TYPE, MalformedBody
from fairlead.api.sse import BoundedStream, EventStream
from fairlead.control import service
from fairlead.control.identity.access import refuse_scraper
from fairlead.control.records import Token
from fairlead.errors import InvalidSpec, Unauthenticated
from fairlead.specs import Spec, invalid

S = TypeVar("S", bound=Spec)

LONG_NUMBER = re.compile(rb"[0-9]{19}")
WRAPPED = 6
"""Extra nesting of the document around a free-form value (``stages.NAME.args``)."""


@dataclass(slots=True)
class Context:
    """State of the application that routes need."""

    platform: service.Platform
    limits: Limits
    rate: RateLimiter
    logins: LoginLimiter
    stopping: asyncio.Event = field(default_factory=asyncio.Event)  # set when the server stops; ends all streams


def context(request: Request) -> Context:
    return cast(Context, request.app.state.context)


async def _platform(request: Request) -> service.Platform:
    return context(request).platform


class Bearer(HTTPBearer):
    """Authenticates ``Authorization: Bearer fl_<id>_<secret>`` and counts the request against the token's rate.

    A logged-in browser sends a cookie instead (POST /api/v1/session). Scraper tokens are refused unless a route allows
    them, so new routes are closed to them.
    """

    def __init__(self, *, scrapers: bool = False) -> None:
        self._scrapers = scrapers
        super().__init__(
            bearerFormat="fl_<id>_<secret>",
            scheme_name="bearer",
            description="A token from `fairlead up`, `fairlead tenant create` or POST /api/v1/tokens.",
        )

    async def __call__(self, request: Request) -> Token:  # type: ignore[override]
        who = await _proof(request)()
        request.state.who = who  # for the audit entry of a refusal
        bind_contextvars(actor=who.id, tenant=who.tenant)  # in every log line of this request
        context(request).rate.admit(who.id, who.tenant)
        if not self._scrapers:
            refuse_scraper(who)
        return who


def _proof(request: Request) -> Callable[[], Awaitable[Token]]:
    """A function that authenticates the client by token or session cookie; streams call it again later."""
    platform, cookie = context(request).platform, session_secret(request)
    if cookie is not None and "authorization" not in request.headers:
        if request.method not in SAFE:
            require_our_page(request)
        return lambda: platform.session(cookie)
    secret = _secret(request)
    return lambda: platform.authenticate(secret)


def _secret(request: Request) -> str:
    header = request.headers.get("authorization", "")
    scheme, _, secret = header.partition(" ")
    secret = secret.strip()
    if not header:
        raise Unauthenticated("a token is required", field="Authorization", fix="send Authorization: Bearer fl_...")
    if scheme.lower() != "bearer" or not secret or not secret.isascii() or len(secret) > 512:
        raise Unauthenticated("is not a bearer token", field="Authorization", fix="send Authorization: Bearer fl_...")
    return secret


Who = Annotated[Token, Security(Bearer())]
Scraper = Annotated[Token, Security(Bearer(scrapers=True))]
Platform = Annotated[service.Platform, Depends(_platform)]

Responses = dict[int | str, dict[str, Any]]


def _problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


PROBLEMS: Responses = {
    400: _problem("The URL or body is malformed: a null character, or a body that is not JSON."),
    401: _problem("No token, or an unknown, expired or revoked token."),
    403: _problem("The token's role does not allow this."),
    422: _problem("A field or parameter is wrong; the problem names it, its value and the fix."),
    429: _problem("The rate limit of the token or tenant is reached; Retry-After gives the time to wait."),
    500: _problem("Internal error; the platform's log has details under the error's id."),
    503: _problem("This platform is not the leader at the moment; try again later."),
}
NOT_FOUND: Responses = {404: _problem("Not found, or it belongs to another tenant.")}
CONFLICT: Responses = {409: _problem("Not possible in the present state.")}
BODY: Responses = {413: _problem("The body is too large.")}


class Query(BaseModel):
    """Base of query parameters: an unknown parameter is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


async def read_json(request: Request) -> Any:
    """The JSON body as plain values; :class:`MalformedBody` if it is not JSON."""
    body = await request.body()
    if not body:
        raise MalformedBody("is empty", field="body", fix="send a JSON object")
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBody(str(error), field="body", fix="send a JSON object in UTF-8") from None
    except RecursionError:
        raise MalformedBody("is nested too deeply", field="body", fix="send a flat JSON object") from None
    if body.count(b"[") + body.count(b"{") > json_values.DEEPEST or LONG_NUMBER.search(body):
        _check_values(data)
    if b"\\u0000" in body and _holds_null(data):
        raise MalformedBody(
            "holds a null character", field="body", fix="remove \\u0000: databases and shells do not accept it"
        )
    return data


def _check_values(data: Any) -> None:
    """Refuse values in any body that cannot be packed, stored or logged: too deep, or integers beyond 64 bits."""
    try:
        json_values.check(data, deepest=json_values.DEEPEST + WRAPPED, largest=None)
    except json_values.InvalidValue as error:
        raise InvalidSpec(error.what, field=error.path or "body", fix=error.fix) from None


def _holds_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_null(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return any(_holds_null(part) for part in value)
    return isinstance(value, str) and "\0" in value


async def read_spec(request: Request, kind: type[S]) -> S:
    """The body parsed as this kind of spec; errors name the field, the value and the fix."""
    data = await read_json(request)
    if not isinstance(data, dict):
        raise InvalidSpec(f"is a {type(data).__name__}, not an object", field="body", fix='send {"field": value}')
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise invalid(error, kind) from None


def answer(view: BaseModel, status: int = 200) -> Response:
    """An answer with this view, which is not validated again."""
    return Response(view.model_dump_json(), status_code=status, media_type="application/json")


def answer_list(views: Iterable[BaseModel]) -> Response:
    body = "[" + ",".join(view.model_dump_json() for view in views) + "]"
    return Response(body, media_type="application/json")


def streamed(
    request: Request, who: Token, source: AsyncGenerator[bytes, None], kind: type[BoundedStream] = EventStream
) -> Response:
    """A streamed answer that ends when the client's token becomes invalid."""
    shared = context(request)
    return kind(
        source,
        stopping=shared.stopping,
        keep_alive_s=shared.limits.keep_alive_s,
        check=_proof(request),
        held=shared.rate.stream(who.id, who.tenant),
        unread_s=shared.limits.unread_s,
    )


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI entry of a body that the route parses itself."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
