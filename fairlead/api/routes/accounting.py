"""Routes of the accounts: what was used by whom, and who did what."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import NOT_FOUND, PROBLEMS, Platform, Query, Who, answer, answer_list
from fairlead.api.routes.events import NEWEST
from fairlead.control.store.audit import AuditFilter
from fairlead.views.jobs import AuditView, UsageView

router = APIRouter(tags=["platform"], responses=PROBLEMS)

MONTH_S = 30 * 86400.0
FAR_S = 1e11  # seconds since the epoch that no clock reaches
Moment = Annotated[float, Field(ge=0, le=FAR_S, allow_inf_nan=False)]


class UsageQuery(Query):
    """Which stretch of the ledger, and by what to break it down."""

    by: str = Field(
        default="tenant", max_length=500, description="Of tenant, user, label, label:KEY, job, node, device, by commas."
    )
    since_s: Moment | None = Field(default=None, description="From this moment on; default: 30 days before the end.")
    until_s: Moment | None = Field(default=None, description="Up to this moment; default: now.")
    tenant: str | None = Field(default=None, max_length=40, description="Only of this tenant.")
    limit: int = Field(default=1000, ge=1, le=100_000, description="At most so many lines; the total counts all.")


class AuditQuery(Query):
    """Which part of the audit log to read."""

    after: int = Field(
        default=0, ge=-1000, le=NEWEST, description="Only entries with a greater id; negative: so many of the newest."
    )
    limit: int = Field(default=100, ge=1, le=1000, description="At most so many.")
    tenant: str | None = Field(default=None, max_length=40, description="Only about this tenant's things.")
    actor: str | None = Field(default=None, max_length=100, description="Only by the token with this id.")
    action: str | None = Field(default=None, max_length=100, description="Only what begins so, such as token.create.")
    since_s: Moment | None = Field(default=None, description="From this moment on.")
    until_s: Moment | None = Field(default=None, description="Before this moment.")


@router.get("/usage", summary="Read what was used", response_model=UsageView, responses=NOT_FOUND)
async def usage(platform: Platform, who: Who, query: Annotated[UsageQuery, QueryParameters()]) -> Response:
    """Device hours, cpu hours and jobs from the ledger; a tenant sees its own only. A user is a token."""
    until_s = time.time() if query.until_s is None else query.until_s
    since_s = max(0.0, until_s - MONTH_S) if query.since_s is None else query.since_s
    by = [name.strip() for name in query.by.split(",")]
    return answer(await platform.usage(who, by, since_s, until_s, query.tenant, query.limit))


@router.get("/audit", summary="Read the audit log", response_model=list[AuditView], responses=NOT_FOUND)
async def audit(platform: Platform, who: Who, query: Annotated[AuditQuery, QueryParameters()]) -> Response:
    """Who did what, oldest first; an admin's. A tenant-admin reads what is about its own tenant."""
    wanted = AuditFilter(query.tenant, query.actor, query.action, query.since_s, query.until_s)
    return answer_list(await platform.audit(who, query.after, query.limit, wanted))
