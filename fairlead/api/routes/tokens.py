"""Routes of access tokens."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import Field

from fairlead.api.context import (
    BODY,
    CONFLICT,
    NOT_FOUND,
    PROBLEMS,
    Platform,
    Who,
    answer,
    answer_list,
    body_of,
    read_spec,
)
from fairlead.control.records import Role
from fairlead.specs import Name, Seconds, Spec
from fairlead.views.jobs import NewToken, TokenView

router = APIRouter(responses=PROBLEMS)

TokenId = Annotated[str, Path(max_length=100, description="The token's id, not its secret.")]


class TokenSpec(Spec):
    """A token to create."""

    tenant: Name | None = None  # None: the tenant of the requesting token
    role: Role = Role.MEMBER
    label: str = Field(default="", max_length=100)
    expires_s: Annotated[Seconds, Field(gt=0)] | None = None  # seconds from now; None: never


@router.post(
    "/tokens",
    tags=["tokens"],
    status_code=201,
    summary="Create a token",
    response_model=NewToken,
    responses=BODY | NOT_FOUND | CONFLICT,
    openapi_extra=body_of(TokenSpec),
)
async def create_token(request: Request, platform: Platform, who: Who) -> Response:
    """Create a token with at most one's own role; its secret is shown only here."""
    spec = await read_spec(request, TokenSpec)
    expires_s = None if spec.expires_s is None else time.time() + spec.expires_s  # stored as a point in time
    return answer(await platform.create_token(who, spec.tenant, spec.role.value, spec.label, expires_s), 201)


@router.get("/tokens", tags=["tokens"], summary="List tokens", response_model=list[TokenView])
async def tokens(platform: Platform, who: Who) -> Response:
    """Tokens visible to the requesting token, without their secrets."""
    return answer_list(await platform.tokens(who))


@router.delete("/tokens/{id}", tags=["tokens"], summary="Revoke a token", response_model=TokenView, responses=NOT_FOUND)
async def revoke_token(platform: Platform, who: Who, id: TokenId) -> Response:
    """Revoke a token at once; its streams end within seconds."""
    return answer(await platform.revoke_token(who, id))
