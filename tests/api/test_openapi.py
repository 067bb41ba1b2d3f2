"""The API's own description: complete, consistent, and true to the routes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from fairlead.api.app import TAGS, create_app
from fairlead.control import service
from fairlead.specs import JobSpec, TenantSpec

ROUTES = """
POST /api/v1/jobs, POST /api/v1/jobs/dry-run, GET /api/v1/jobs, GET /api/v1/jobs/{job},
POST /api/v1/jobs/{job}/cancel, POST /api/v1/jobs/cancel, GET /api/v1/jobs/{job}/why, GET /api/v1/jobs/{job}/logs,
GET /api/v1/jobs/{job}/metrics, GET /api/v1/jobs/{job}/result, GET /api/v1/jobs/{job}/artifacts/{name},
PUT /api/v1/bundles/{digest}, HEAD /api/v1/bundles/{digest}, POST /api/v1/tenants, GET /api/v1/tenants,
GET /api/v1/tenants/{name}, PATCH /api/v1/tenants/{name}, POST /api/v1/tokens, GET /api/v1/tokens,
DELETE /api/v1/tokens/{id}, GET /api/v1/nodes, POST /api/v1/nodes/{name}/cordon,
POST /api/v1/nodes/{name}/uncordon, POST /api/v1/nodes/{name}/drain, GET /api/v1/events,
GET /api/v1/events/stream, GET /api/v1/report, GET /api/v1/state, GET /api/v1/whoami, GET /api/v1/audit,
GET /api/v1/usage,
POST /api/v1/shutdown,
GET /api/v1/secrets, PUT /api/v1/secrets/{name}, DELETE /api/v1/secrets/{name},
GET /api/v1/datasets, GET /api/v1/datasets/{name}, DELETE /api/v1/datasets/{name}, GET /api/v1/jobs/{job}/lineage,
POST /api/v1/jobs/{job}/rerun,
POST /api/v1/pipelines, GET /api/v1/pipelines, GET /api/v1/pipelines/{pipeline},
POST /api/v1/pipelines/{pipeline}/cancel,
GET /healthz, GET /metrics, POST /api/v1/session, GET /api/v1/session, DELETE /api/v1/session, GET /api/v1/shares
"""
METHODS = ("get", "put", "post", "delete", "head", "patch")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = create_app(cast(service.Platform, None))  # describing needs no platform
    copied: dict[str, Any] = json.loads(json.dumps(app.openapi()))
    return copied


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert method in METHODS
            yield f"{method.upper()} {path}", operation


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def test_the_document_lists_exactly_the_routes_that_were_promised(document: dict[str, Any]) -> None:
    promised = {route.strip() for route in ROUTES.replace("\n", " ").split(",")}
    assert {route for route, _ in _operations(document)} == promised


def test_the_document_is_fairlead_s_and_says_how_to_authenticate(document: dict[str, Any]) -> None:
    assert document["info"]["title"] == "Fairlead" and document["openapi"].startswith("3.")
    (scheme,) = document["components"]["securitySchemes"].values()
    assert scheme["type"] == "http" and scheme["scheme"] == "bearer"
    for route, operation in _operations(document):
        assert bool(operation.get("security")) == (route not in ("GET /healthz", "POST /api/v1/session")), route


def test_every_route_has_a_summary_a_description_a_tag_and_a_name_of_its_own(document: dict[str, Any]) -> None:
    names = set()
    for route, operation in _operations(document):
        assert operation["summary"] and len(operation["description"]) > 15, route
        assert set(operation["tags"]) <= set(TAGS) and len(operation["tags"]) == 1, route
        names.add(operation["operationId"])
        for parameter in operation.get("parameters", []):
            assert parameter.get("description") or parameter["schema"].get("description"), (route, parameter["name"])
    assert len(names) == len(list(_operations(document)))


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for reference in _references(document):
        place, _, name = reference.rpartition("/")
        assert place == "#/components/schemas" and name in schemas, reference


def test_every_problem_is_documented_as_problem_json(document: dict[str, Any]) -> None:
    for route, operation in _operations(document):
        if route == "GET /healthz":
            continue
        responses = operation["responses"]
        assert {"401", "403", "422", "429", "500"} <= set(responses), route
        for status, response in responses.items():
            if status >= "400":
                assert list(response["content"]) == ["application/problem+json"], (route, status)


def test_the_bodies_are_the_specs_themselves(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert set(schemas["JobSpec"]["properties"]) == set(JobSpec.model_fields)
    assert set(schemas["TenantSpec"]["properties"]) == set(TenantSpec.model_fields)
    content = document["paths"]["/api/v1/jobs"]["post"]["requestBody"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/JobSpec"}


def test_every_route_with_a_body_says_so(document: dict[str, Any]) -> None:
    with_body = {route for route, operation in _operations(document) if "requestBody" in operation}
    assert with_body == {
        "POST /api/v1/jobs", "POST /api/v1/pipelines", "POST /api/v1/jobs/dry-run", "PUT /api/v1/bundles/{digest}",
        "POST /api/v1/tenants", "PATCH /api/v1/tenants/{name}", "POST /api/v1/tokens",
        "POST /api/v1/session", "PUT /api/v1/secrets/{name}", "POST /api/v1/jobs/cancel",
    }  # fmt: skip
