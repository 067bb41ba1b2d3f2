"""Routes of tenants."""

from __future__ import annotations

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
from fairlead.errors import InvalidSpec, NotFound
from fairlead.specs import Budget, ByType, Name, Policy, Sla, Spec, TenantSpec, parse_tenant
from fairlead.views.jobs import NewTenant, TenantView

router = APIRouter(responses=PROBLEMS)

TenantName = Annotated[str, Path(max_length=40, description="The tenant's name.")]


class TenantChange(Spec):
    """Changes of a tenant; omitted fields stay. A quota, budget or parent of null removes it."""

    weight: float = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    quota: int | None = Field(default=None, ge=1, le=1_000_000)
    sla: Sla = Sla()
    policy: Policy = Policy()
    budget: Budget | None = None
    parent: Name | None = None
    guarantee: ByType = Field(default_factory=dict, max_length=64)
    most: ByType = Field(default_factory=dict, max_length=64)


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
    """Create a tenant and its first token, whose secret is shown only here."""
    return answer(await platform.create_tenant(who, parse_tenant(await read_json(request))), 201)


@router.get("/tenants", tags=["tenants"], summary="List tenants", response_model=list[TenantView])
async def tenants(platform: Platform, who: Who) -> Response:
    """Tenants visible to the token, with entitlement and devices in use."""
    return answer_list(await platform.tenants(who))


@router.get(
    "/tenants/{name}", tags=["tenants"], summary="Read a tenant", response_model=TenantView, responses=NOT_FOUND
)
async def tenant(platform: Platform, who: Who, name: TenantName) -> Response:
    """One tenant, if visible to the token."""
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
    """Change shares, limits, default SLA, policy or budget; effective from the next scheduling round."""
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
