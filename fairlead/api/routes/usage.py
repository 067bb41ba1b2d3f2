"""Routes of usage."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import NOT_FOUND, PROBLEMS, Platform, Query, Who, answer
from fairlead.views.jobs import UsageView

router = APIRouter(tags=["platform"], responses=PROBLEMS)

MONTH_S = 30 * 86400.0
MAX_TIME_S = 1e11  # seconds since the epoch, beyond any clock
Moment = Annotated[float, Field(ge=0, le=MAX_TIME_S, allow_inf_nan=False)]


class UsageQuery(Query):
    """Which period of the ledger, and the keys to group it by."""

    by: str = Field(
        default="tenant",
        max_length=500,
        description="tenant, user, label, label:KEY, job, node, device; comma-separated.",
    )
    since_s: Moment | None = Field(default=None, description="Start; default: 30 days before the end.")
    until_s: Moment | None = Field(default=None, description="End; default: now.")
    tenant: str | None = Field(default=None, max_length=40, description="Only this tenant.")
    limit: int = Field(default=1000, ge=1, le=100_000, description="Maximum number of lines; the total includes all.")


@router.get("/usage", summary="Read usage", response_model=UsageView, responses=NOT_FOUND)
async def usage(platform: Platform, who: Who, query: Annotated[UsageQuery, QueryParameters()]) -> Response:
    """Device hours, CPU hours and jobs from the ledger; a tenant sees only its own. A user is a token."""
    until_s = time.time() if query.until_s is None else query.until_s
    since_s = max(0.0, until_s - MONTH_S) if query.since_s is None else query.since_s
    by = [name.strip() for name in query.by.split(",")]
    return answer(await platform.usage(who, by, since_s, until_s, query.tenant, query.limit))
