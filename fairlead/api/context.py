"""What every route has at hand: the platform, who asks, and how bodies come in and answers go out."""

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
"""So much deeper than a free-form value may be is the document around it (``stages.NAME.args``)."""


@dataclass(slots=True)
class Context:
    """The one thing that the application carries from its making to its routes."""

    platform: service.Platform
    limits: Limits
    rate: RateLimiter
    logins: LoginLimiter
    stopping: asyncio.Event = field(default_factory=asyncio.Event)  # ends the streams when the server ends


def context(request: Request) -> Context:
    return cast(Context, request.app.state.context)


async def _platform(request: Request) -> service.Platform:
    return context(request).platform


class Bearer(HTTPBearer):
    """Who asks, from ``Authorization: Bearer fl_<id>_<secret>``; counts the request against its rate.

    A browser that logged in has no header but a cookie: POST /api/v1/session. Who only scrapes is turned away but where
    it is said otherwise, so that a new route is closed to it.
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
        request.state.who = who  # for the note that is taken when it is refused
        bind_contextvars(actor=who.id, tenant=who.tenant)  # in every line of the log from here on
        context(request).rate.admit(who.id, who.tenant)
        if not self._scrapers:
            refuse_scraper(who)
        return who


def _proof(request: Request) -> Callable[[], Awaitable[Token]]:
    """How this client proves who it is: by token, or by the cookie of its session. May be asked again later."""
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
        raise Unauthenticated("this needs a token", field="Authorization", fix="send Authorization: Bearer fl_...")
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
    400: _problem("The address or the body cannot be read: a null character, or a body that is not JSON."),
    401: _problem("No token, or one that is unknown, expired or revoked."),
    403: _problem("The token's role does not allow this."),
    422: _problem("A field or parameter is wrong; the problem names it, its value and the fix."),
    429: _problem("The rate of the token or of its tenant is used up; Retry-After says when to come again."),
    500: _problem("The platform failed; its log tells more under the error's id."),
    503: _problem("The platform does not lead at the moment; try again later."),
}
NOT_FOUND: Responses = {404: _problem("There is none, or it is another tenant's.")}
CONFLICT: Responses = {409: _problem("Understood, but not possible as things stand.")}
BODY: Responses = {413: _problem("The body is too large.")}


class Query(BaseModel):
    """Base of query parameters: an unknown one is an error, not a silent nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)


async def read_json(request: Request) -> Any:
    """The body as plain values, or a problem that says where it stops being JSON."""
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
        _must_fit(data)
    if b"\\u0000" in body and _holds_null(data):
        raise MalformedBody(
            "holds a null character", field="body", fix="leave \\u0000 out: no store and no shell takes it"
        )
    return data


def _must_fit(data: Any) -> None:
    """Whatever the body is of: nothing behind this door meets a value that it cannot pack, store or write down."""
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
    """The body as a spec of this kind, with the product's own messages when it is none."""
    data = await read_json(request)
    if not isinstance(data, dict):
        raise InvalidSpec(f"is a {type(data).__name__}, not an object", field="body", fix='send {"field": value}')
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise invalid(error, kind) from None


def answer(view: BaseModel, status: int = 200) -> Response:
    """The view as it is: it was checked when it was made, so it is not checked again."""
    return Response(view.model_dump_json(), status_code=status, media_type="application/json")


def answer_list(views: Iterable[BaseModel]) -> Response:
    body = "[" + ",".join(view.model_dump_json() for view in views) + "]"
    return Response(body, media_type="application/json")


def streamed(
    request: Request, who: Token, source: AsyncGenerator[bytes, None], kind: type[BoundedStream] = EventStream
) -> Response:
    """An answer in pieces for this client, as long as its token is good."""
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
    """What OpenAPI says of a body that the route reads itself."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
