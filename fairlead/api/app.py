"""Builds the FastAPI application: routes, middleware, error handlers and the OpenAPI document."""

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
from fairlead.api.request_metrics import RequestMetrics
from fairlead.api.routes import (
    artifacts,
    audit,
    bundles,
    datasets,
    events,
    jobs,
    lineage,
    logs,
    nodes,
    pipelines,
    secrets,
    sessions,
    tenants,
    tokens,
    usage,
)
from fairlead.api.routes import platform as platform_routes
from fairlead.control import service
from fairlead.pipelines.graph import PipelineSpec
from fairlead.specs import JobSpec, TenantSpec

PREFIX = "/api/v1"
DESCRIPTION = """One shared training cluster out of different machines: fair, elastic, crash-safe.

Send `Authorization: Bearer <token>` with every request except `/healthz`. The web page at `/` logs in with
`POST /api/v1/session` and then uses a cookie; its requests that change something must carry `X-Fairlead-Page` and
come from the platform's own origin. Errors are `application/problem+json` (RFC 9457) documents with a
machine-readable `code` and, if a field is wrong, the field, its value and the fix. Times are
seconds since the epoch."""
TAGS = {
    "jobs": "Submit, watch, explain and cancel jobs; read their results.",
    "pipelines": "Run, read and cancel graphs of stages.",
    "bundles": "Packed code folders of jobs, named by their hash.",
    "tenants": "Tenants with weight, quota, limits and default SLA.",
    "tokens": "Access tokens and their roles.",
    "data": "Data sets by name and version, lineage of results, and reruns.",
    "secrets": "Values that jobs get as environment variables and that are never shown.",
    "sessions": "Login of the web page.",
    "nodes": "Nodes; cordon, drain and uncordon.",
    "events": "Events, listed or streamed.",
    "platform": "The platform as a whole.",
}


def create_app(platform: service.Platform, *, limits: Limits | None = None, secure: bool = False) -> FastAPI:
    """The API of this platform; ``secure`` if browsers connect by TLS, directly or through a proxy.

    Serve it with :func:`fairlead.api.server.serve`.
    """
    limits = limits or Limits()
    app = FastAPI(
        title="Fairlead",
        version=fairlead.__version__,
        description=DESCRIPTION,
        openapi_url=None,  # FastAPI would build the document in the event loop
        docs_url=None,  # the default page loads scripts from the network
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
    )
    app.state.context = Context(platform, limits, RateLimiter(limits), LoginLimiter(limits))
    problems.install(app)
    resources = (
        jobs, pipelines, datasets, lineage, logs, bundles, artifacts, secrets, tenants, tokens, nodes, events, sessions,
        usage, audit, platform_routes,
    )  # fmt: skip
    for resource in resources:
        app.include_router(resource.router, prefix=PREFIX)
    app.include_router(platform_routes.open_router)
    dashboard.install(app)
    bundle_paths = f"{PREFIX}/bundles/"
    app.add_middleware(
        BodyLimit,
        limit_bytes=lambda path: platform.bundle_limit_bytes if path.startswith(bundle_paths) else limits.body_bytes,
    )
    app.add_middleware(OuterLayer, secure=secure)
    app.add_middleware(RequestMetrics)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]

    async def document(request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(app.openapi))

    app.add_route(f"{PREFIX}/openapi.json", document, include_in_schema=False)
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document plus the schemas of bodies that routes parse themselves."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        kinds = (
            JobSpec, PipelineSpec, TenantSpec, tenants.TenantChange, tokens.TokenSpec, secrets.SecretSpec,
            jobs.CancelSpec, sessions.SessionSpec, problems.Problem,
        )  # fmt: skip
        _, schemas = models_json_schema(
            [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
        )
        document["components"]["schemas"] |= schemas["$defs"]
        app.openapi_schema = document
    return app.openapi_schema
