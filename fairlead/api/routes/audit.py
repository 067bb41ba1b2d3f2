"""Routes of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import NOT_FOUND, PROBLEMS, Platform, Query, Who, answer_list
from fairlead.api.routes.events import NEWEST
from fairlead.api.routes.usage import Moment
from fairlead.control.store.audit import AuditFilter
from fairlead.views.jobs import AuditView

router = APIRouter(tags=["platform"], responses=PROBLEMS)


class AuditQuery(Query):
    """Which part of the audit log to read."""

    after: int = Field(
        default=0, ge=-1000, le=NEWEST, description="Only entries after this id; negative: the newest N."
    )
    limit: int = Field(default=100, ge=1, le=1000, description="Maximum number of entries.")
    tenant: str | None = Field(default=None, max_length=40, description="Only entries about this tenant.")
    actor: str | None = Field(default=None, max_length=100, description="Only by the token with this id.")
    action: str | None = Field(
        default=None, max_length=100, description="Only actions with this prefix, such as token.create."
    )
    since_s: Moment | None = Field(default=None, description="Start.")
    until_s: Moment | None = Field(default=None, description="End (exclusive).")


@router.get("/audit", summary="Read the audit log", response_model=list[AuditView], responses=NOT_FOUND)
async def audit(platform: Platform, who: Who, query: Annotated[AuditQuery, QueryParameters()]) -> Response:
    """Who changed what, oldest first; for admins. A tenant-admin reads its own tenant's entries."""
    wanted = AuditFilter(query.tenant, query.actor, query.action, query.since_s, query.until_s)
    return answer_list(await platform.audit(who, query.after, query.limit, wanted))
