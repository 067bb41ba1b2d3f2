"""Routes of tenants and of their tokens."""

from __future__ import annotations

import time
from typing import Annotated, Any

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
    read_json,
    read_spec,
)
from fairlead.control.records import Role
from fairlead.errors import InvalidSpec, NotFound
from fairlead.specs import Budget, ByType, Name, Policy, Seconds, Sla, Spec, TenantSpec, parse_tenant
from fairlead.views.jobs import NewTenant, NewToken, TenantView, TokenView

router = APIRouter(responses=PROBLEMS)

TenantName = Annotated[str, Path(max_length=40, description="The tenant's name.")]
TokenId = Annotated[str, Path(max_length=100, description="The token's id, not its secret.")]


class TenantChange(Spec):
    """What of a tenant is to change; what is not named stays. A quota, budget or parent of null takes it away."""

    weight: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    quota: int | None = Field(default=None, ge=1, le=1_000_000)
    sla: Sla = Sla()
    policy: Policy = Policy()
    budget: Budget | None = None
    parent: Name | None = None
    guarantee: ByType = Field(default_factory=dict, max_length=64)
    most: ByType = Field(default_factory=dict, max_length=64)


class TokenSpec(Spec):
    """A token to make."""

    tenant: Name | None = None  # None: the tenant of the token that asks
    role: Role = Role.MEMBER
    label: str = Field(default="", max_length=100)
    expires_s: Annotated[Seconds, Field(gt=0)] | None = None  # seconds from now; None: never


@router.post(
    "/tenants",
    tags=["tenants"],
    status_code=201,
    summary="Create a tenant",
    response_model=NewTenant,
    responses=BODY | CONFLICT,
    openapi_extra=body_of(TenantSpec),
)
async def create_tenant(request: Request, platform: Platform, who: Who) -> Response:
    """Make a tenant and its first token, whose secret is shown only here."""
    return answer(await platform.create_tenant(who, parse_tenant(await read_json(request))), 201)


@router.get("/tenants", tags=["tenants"], summary="List tenants", response_model=list[TenantView])
async def tenants(platform: Platform, who: Who) -> Response:
    """The tenants that the token may see, with what each is entitled to and what it holds now."""
    return answer_list(await platform.tenants(who))


@router.get(
    "/tenants/{name}", tags=["tenants"], summary="Look at a tenant", response_model=TenantView, responses=NOT_FOUND
)
async def tenant(platform: Platform, who: Who, name: TenantName) -> Response:
    """One tenant, if the token may see it."""
    for view in await platform.tenants(who):
        if view.name == name:
            return answer(view)
    raise NotFound(f"{name!r}: no such tenant", field="tenant", value=name, fix="see fairlead tenants")


@router.patch(
    "/tenants/{name}",
    tags=["tenants"],
    summary="Change a tenant",
    response_model=TenantView,
    responses=BODY | NOT_FOUND | CONFLICT,
    openapi_extra=body_of(TenantChange),
)
async def update_tenant(request: Request, platform: Platform, who: Who, name: TenantName) -> Response:
    """Change its shares and limits, default SLA, policy or budget; the next round of decisions goes by it."""
    change = await read_spec(request, TenantChange)
    changes: dict[str, Any] = {field: getattr(change, field) for field in change.model_fields_set}
    if not changes:
        raise InvalidSpec(
            "nothing to change",
            field="body",
            fix="name at least one of weight, quota, parent, guarantee, most, sla, policy and budget",
        )
    if "sla" in changes:
        changes["sla"] = change.sla.model_dump(mode="json", by_alias=True, exclude_none=True)
    if "policy" in changes:
        changes["policy"] = change.policy.model_dump(mode="json", exclude_unset=True)
    if change.budget is not None:
        changes["budget"] = change.budget.model_dump(mode="json")
    return answer(await platform.update_tenant(who, name, changes))


@router.post(
    "/tokens",
    tags=["tokens"],
    status_code=201,
    summary="Make a token",
    response_model=NewToken,
    responses=BODY | NOT_FOUND | CONFLICT,
    openapi_extra=body_of(TokenSpec),
)
async def create_token(request: Request, platform: Platform, who: Who) -> Response:
    """Make a token with a role of at most one's own; its secret is shown only here."""
    spec = await read_spec(request, TokenSpec)
    expires_s = None if spec.expires_s is None else time.time() + spec.expires_s  # the platform keeps points in time
    return answer(await platform.create_token(who, spec.tenant, spec.role.value, spec.label, expires_s), 201)


@router.get("/tokens", tags=["tokens"], summary="List tokens", response_model=list[TokenView])
async def tokens(platform: Platform, who: Who) -> Response:
    """The tokens that the token may see, without their secrets."""
    return answer_list(await platform.tokens(who))


@router.delete("/tokens/{id}", tags=["tokens"], summary="Revoke a token", response_model=TokenView, responses=NOT_FOUND)
async def revoke_token(platform: Platform, who: Who, id: TokenId) -> Response:
    """From now on the token opens nothing; its streams end within seconds."""
    return answer(await platform.revoke_token(who, id))
