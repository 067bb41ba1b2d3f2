"""Routes of the platform: health, identity, report, shares, metrics, shutdown."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Response
from fastapi import Query as QueryParameters
from pydantic import Field

from fairlead.api.context import PROBLEMS, Platform, Query, Scraper, Who, answer
from fairlead.control.identity.access import require_scraper
from fairlead.views.jobs import StateView, WhoAmI
from fairlead.views.reports import Report, SharesView

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(tags=["platform"], responses=PROBLEMS)
open_router = APIRouter(tags=["platform"])  # outside /api/v1, where probes and scrapers look


class SharesQuery(Query):
    """Which period to read."""

    window_s: float = Field(default=3600.0, ge=60.0, le=31 * 86400.0, description="Seconds back from now.")
    points: int = Field(default=120, ge=2, le=1000, description="Number of equal intervals.")


@router.get("/shares", summary="Read shares over time", response_model=SharesView)
async def shares(platform: Platform, who: Who, query: Annotated[SharesQuery, QueryParameters()]) -> Response:
    """Devices in use and entitlement per tenant over time; a tenant sees only its own."""
    return answer(await platform.shares(who, query.window_s, query.points))


@router.get("/report", summary="Read the report", response_model=Report)
async def report(platform: Platform, who: Who) -> Response:
    """Training time, utilisation, throughput, fairness, recovery and SLA satisfaction, per tenant and per job."""
    return answer(await platform.report(who))


@router.get("/state", summary="Read the scheduler's state", response_model=StateView)
async def state(platform: Platform, who: Who) -> Response:
    """Nodes, tenants and jobs as the policy sees them, for simulation (fairlead what-if). Needs an admin token."""
    return answer(await platform.state(who))


@router.get("/whoami", summary="Read the token's role", response_model=WhoAmI)
async def whoami(platform: Platform, who: Who) -> Response:
    """Role and tenant of the token."""
    return answer(await platform.whoami(who))


@router.post("/shutdown", status_code=202, summary="Stop the platform", response_model=dict[str, str])
async def shutdown(platform: Platform, who: Who) -> Response:
    """Stop the platform; needs an admin token. Running jobs resume when it starts again."""
    await platform.shutdown(who)
    return _json({"status": "stopping"}, 202)


@open_router.get(
    "/healthz",
    summary="Check health",
    response_model=dict[str, Any],
    responses={503: {"description": "Not the leader, or unhealthy; the body has the details."}},
)
async def health(platform: Platform) -> Response:
    """Whether the platform is up and leads; needs no token."""
    state = await platform.health()
    return _json(state, 200 if state.get("status") == "ok" else 503)


@open_router.get(
    "/metrics",
    summary="Scrape metrics",
    response_class=Response,
    responses=PROBLEMS | {200: {"content": {PROMETHEUS: {}}, "description": "In Prometheus' text format."}},
)
async def prometheus(platform: Platform, who: Scraper) -> Response:
    """Gauges and counters of all tenants; needs a scraper or admin token."""
    require_scraper(who)
    return Response(await platform.prometheus(), headers={"Content-Type": PROMETHEUS})


def _json(value: dict[str, Any], status: int) -> Response:
    return Response(msgspec.json.encode(value, enc_hook=str), status_code=status, media_type="application/json")
