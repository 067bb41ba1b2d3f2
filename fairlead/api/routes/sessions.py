"""Routes of sessions: the web page exchanges a token for a cookie that scripts cannot read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from fairlead.api import cookies
from fairlead.api.context import BODY, PROBLEMS, Platform, Who, answer, body_of, context, read_spec
from fairlead.control.identity.access import refuse_scraper
from fairlead.specs import Spec
from fairlead.views.jobs import WhoAmI

router = APIRouter(prefix="/session", tags=["sessions"], responses=PROBLEMS)


class SessionSpec(Spec):
    """A login with a token."""

    token: Annotated[str, Field(min_length=1, max_length=512)]


@router.post(
    "",
    status_code=201,
    summary="Log in on the page",
    response_model=WhoAmI,
    responses=BODY,
    openapi_extra=body_of(SessionSpec),
)
async def log_in(request: Request, platform: Platform) -> Response:
    """Exchange a token for a session cookie, valid for at most twelve hours. Attempts are limited per address."""
    cookies.require_our_origin(request, needed=False)
    shared, address = context(request), request.client.host if request.client else ""
    shared.logins.attempt(address)
    spec = await read_spec(request, SessionSpec)
    who = await platform.authenticate(spec.token.strip())
    shared.logins.succeeded(address, who.id)
    shared.rate.admit(who.id, who.tenant)
    refuse_scraper(who)
    secret, seconds = await platform.open_session(who)
    response = answer(await platform.whoami(who), 201)
    cookies.give(request, response, secret, seconds)
    return response


@router.get("", summary="Read the session", response_model=WhoAmI)
async def session(platform: Platform, who: Who) -> Response:
    """Role and tenant of the session, or 401 without one."""
    return answer(await platform.whoami(who))


@router.delete("", status_code=204, response_class=Response, summary="Log out")
async def log_out(request: Request, platform: Platform, who: Who) -> Response:
    """End the session and delete its cookie; a token in the header stays valid."""
    secret = cookies.session_secret(request)
    if secret is not None:
        await platform.close_session(who, secret)
    response = Response(status_code=204)
    cookies.take_back(request, response)
    return response
