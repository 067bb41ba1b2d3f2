"""Routes of the platform as a whole: health, who one is, the report, the audit log, metrics, shutdown."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import PROBLEMS, Platform, Query, Who, answer, answer_list
from fairlead.api.events import NEWEST
from fairlead.control.records import Role
from fairlead.errors import Forbidden
from fairlead.views import AuditView, Report, WhoAmI

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(tags=["platform"], responses=PROBLEMS)
open_router = APIRouter(tags=["platform"])  # outside /api/v1, where probes and scrapers look


class AuditQuery(Query):
    """Which part of the audit log to read."""

    after: int = Field(default=0, ge=0, le=NEWEST, description="Only entries with a greater id.")
    limit: int = Field(default=100, ge=1, le=1000, description="At most so many.")


@router.get("/report", summary="Read the report", response_model=Report)
async def report(platform: Platform, who: Who) -> Response:
    """Training time, utilisation, throughput, fairness, recovery and SLA satisfaction, per tenant and per job."""
    return answer(await platform.report(who))


@router.get("/whoami", summary="Ask who one is", response_model=WhoAmI)
async def whoami(platform: Platform, who: Who) -> Response:
    """Role and tenant of the token."""
    return answer(await platform.whoami(who))


@router.get("/audit", summary="Read the audit log", response_model=list[AuditView])
async def audit(platform: Platform, who: Who, query: Annotated[AuditQuery, QueryParameters()]) -> Response:
    """Who did what, oldest first."""
    return answer_list(await platform.audit(who, query.after, query.limit))


@router.post("/shutdown", status_code=202, summary="Stop the platform", response_model=dict[str, str])
async def shutdown(platform: Platform, who: Who) -> Response:
    """Stop the platform in order; for an admin. Jobs that run go on when it comes up again."""
    await platform.shutdown(who)
    return _json({"status": "stopping"}, 202)


@open_router.get(
    "/healthz",
    summary="Ask whether it works",
    response_model=dict[str, Any],
    responses={503: {"description": "It does not lead, or is not well; the body says which."}},
)
async def health(platform: Platform) -> Response:
    """Needs no token: whether the platform is up and leads."""
    state = await platform.health()
    return _json(state, 200 if state.get("status") == "ok" else 503)


@open_router.get(
    "/metrics",
    summary="Scrape metrics",
    response_class=Response,
    responses=PROBLEMS | {200: {"content": {PROMETHEUS: {}}, "description": "In Prometheus' text format."}},
)
async def prometheus(platform: Platform, who: Who) -> Response:
    """Gauges and counters of all tenants, so for an admin token only."""
    if who.role is not Role.ADMIN:
        raise Forbidden("shows all tenants", field="role", value=str(who.role), fix="use an admin's token")
    return Response(await platform.prometheus(), headers={"Content-Type": PROMETHEUS})


def _json(value: dict[str, Any], status: int) -> Response:
    return Response(msgspec.json.encode(value, enc_hook=str), status_code=status, media_type="application/json")
