"""The application: all routes over one platform, with one way for errors and one OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic.json_schema import models_json_schema

import fairlead
from fairlead import dashboard
from fairlead.api import problems
from fairlead.api.context import Context
from fairlead.api.limits import Limits, LoginLimiter, RateLimiter
from fairlead.api.middleware import BodyLimit, OuterLayer
from fairlead.api.request_metrics import Observed
from fairlead.api.routes import (
    accounting,
    datasets,
    events,
    files,
    jobs,
    logs,
    nodes,
    pipelines,
    secrets,
    sessions,
    system,
    tenants,
)
from fairlead.control import service
from fairlead.pipelines.graph import PipelineSpec
from fairlead.specs import JobSpec, TenantSpec

PREFIX = "/api/v1"
DESCRIPTION = """One shared training cluster out of a pool of unlike machines: fair, elastic, crash-safe.

Send `Authorization: Bearer <token>` with every request but `/healthz`. The page at `/` logs in with
`POST /api/v1/session` instead and is known by a cookie; what changes something must then carry `X-Fairlead-Page` and
come from the platform's own origin. Whatever goes wrong is answered as
`application/problem+json` (RFC 9457) with a machine-readable `code` and, where a field is at fault, with that
field, its value and the fix. Times are seconds since the epoch."""
TAGS = {
    "jobs": "Submit jobs, watch them, ask why, and fetch what they leave behind.",
    "pipelines": "Run graphs of stages, and follow them.",
    "bundles": "The folders that jobs run from, packed and named by their hash.",
    "tenants": "Teams with their weight, quota and default SLA.",
    "tokens": "Who may do what.",
    "data": "Data sets by name and version, where results came from, and making them again.",
    "secrets": "Values that jobs get as variables, and nobody is shown.",
    "sessions": "Logging in on the page.",
    "nodes": "The machines, and taking them out of use.",
    "events": "What happened, listed or live.",
    "platform": "The platform as a whole.",
}


def create_app(platform: service.Platform, *, limits: Limits | None = None, secure: bool = False) -> FastAPI:
    """The API over this platform, ``secure`` if browsers speak TLS, to us or to a proxy before us.

    Serve it with :func:`fairlead.api.server.serve`.
    """
    limits = limits or Limits()
    app = FastAPI(
        title="Fairlead",
        version=fairlead.__version__,
        description=DESCRIPTION,
        openapi_url=None,  # FastAPI would make the document while everybody else waits
        docs_url=None,  # the usual page loads its scripts from the network
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
    )
    app.state.context = Context(platform, limits, RateLimiter(limits), LoginLimiter(limits))
    problems.install(app)
    for room in (jobs, pipelines, datasets, logs, files, secrets, tenants, nodes, events, sessions, accounting, system):
        app.include_router(room.router, prefix=PREFIX)
    app.include_router(system.open_router)
    dashboard.install(app)
    bundles = f"{PREFIX}/bundles/"
    app.add_middleware(
        BodyLimit,
        limit_bytes=lambda path: platform.bundle_limit_bytes if path.startswith(bundles) else limits.body_bytes,
    )
    app.add_middleware(OuterLayer, secure=secure)
    app.add_middleware(Observed)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]

    async def document(request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(app.openapi))

    app.add_route(f"{PREFIX}/openapi.json", document, include_in_schema=False)
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, and the schemas of the bodies that routes read themselves."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        kinds = (
            JobSpec, PipelineSpec, TenantSpec, tenants.TenantChange, tenants.TokenSpec, secrets.SecretSpec,
            jobs.CancelSpec, sessions.SessionSpec, problems.Problem,
        )  # fmt: skip
        _, schemas = models_json_schema(
            [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
        )
        document["components"]["schemas"] |= schemas["$defs"]
        app.openapi_schema = document
    return app.openapi_schema
