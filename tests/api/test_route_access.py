"""Every route, from the application's own route table: who may not use it. A route without an entry here fails.

A new route needs one line in ``MATRIX``: the least role that may use it, and what a stranger (somebody with the same
role in another tenant) is told about a thing of alpha's. Paths are filled in from ``things``.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets as randomness
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import httpx
import pytest
from fastapi import routing
from starlette.routing import Mount

from fairlead.api.app import create_app
from fairlead.control import service
from tests.api.conftest import ROLES, Served, Team, load_table
from tests.waiting import until

ORDER = ("viewer", "member", "tenant-admin", "admin")
JOB = {"name": "not-allowed", "command": ["true"]}
PIPELINE = {"name": "not-allowed", "stages": {"one": {"command": ["true"]}}}
BUNDLE = b"code that is alpha's and nobody else's"
DIGEST = "sha256:" + hashlib.sha256(BUNDLE).hexdigest()


@dataclass(frozen=True)
class Access:
    """What is needed to use a route."""

    least: str | None  # the least role that may; None: no token is needed
    stranger: int | None = None  # what a stranger is answered; None: the route names nothing of a tenant's
    body: Any = None
    query: str = ""
    scraped: bool = False  # whether a scraper may, whose token is good for nothing else


OPEN = Access(None)
MATRIX: dict[str, Access] = {
    # what needs no token
    "GET /api/v1/openapi.json": OPEN,
    "GET /healthz": OPEN,
    "GET /": OPEN,
    "MOUNT /ui": OPEN,
    "POST /api/v1/session": Access(None, body={"token": "fl_0123456789_" + "0" * 48}),
    # jobs
    "POST /api/v1/jobs": Access("member", 404, body=JOB | {"tenant": "alpha"}),
    "POST /api/v1/jobs/dry-run": Access("viewer", 404, body=JOB | {"tenant": "alpha"}),
    "GET /api/v1/jobs": Access("viewer", 404, query="?tenant=alpha"),
    "GET /api/v1/jobs/{job}": Access("viewer", 404),
    "POST /api/v1/jobs/{job}/cancel": Access("member", 404),
    "GET /api/v1/jobs/{job}/why": Access("viewer", 404),
    "GET /api/v1/jobs/{job}/metrics": Access("viewer", 404),
    "GET /api/v1/jobs/{job}/result": Access("viewer", 404),
    "GET /api/v1/jobs/{job}/logs": Access("viewer", 404),
    "GET /api/v1/jobs/{job}/artifacts/{name}": Access("viewer", 404),
    "GET /api/v1/jobs/{job}/lineage": Access("viewer", 404),
    "POST /api/v1/jobs/{job}/rerun": Access("member", 404),
    "POST /api/v1/jobs/cancel": Access("member", 404, body={"tenant": "alpha", "name": "alpha-own-*"}),
    # pipelines
    "POST /api/v1/pipelines": Access("member", 404, body=PIPELINE | {"tenant": "alpha"}),
    "GET /api/v1/pipelines": Access("viewer", 404, query="?tenant=alpha"),
    "GET /api/v1/pipelines/{pipeline}": Access("viewer", 404),
    "POST /api/v1/pipelines/{pipeline}/cancel": Access("member", 404),
    # data sets
    "GET /api/v1/datasets": Access("viewer", 404, query="?tenant=alpha"),
    "GET /api/v1/datasets/{name}": Access("viewer", 404, query="?tenant=alpha"),
    "DELETE /api/v1/datasets/{name}": Access("member", 404, query="?tenant=alpha"),
    # bundles
    "HEAD /api/v1/bundles/{digest}": Access("viewer", 404),
    "PUT /api/v1/bundles/{digest}": Access("member", 404, body=BUNDLE, query="?tenant=alpha"),
    # secrets
    "GET /api/v1/secrets": Access("viewer", 404, query="?tenant=alpha"),
    "PUT /api/v1/secrets/{name}": Access("tenant-admin", 404, body={"value": "12345678"}, query="?tenant=alpha"),
    "DELETE /api/v1/secrets/{name}": Access("tenant-admin", 404, query="?tenant=alpha"),
    # tenants and tokens
    "POST /api/v1/tenants": Access("admin", body={"name": "not-allowed"}),
    "GET /api/v1/tenants": Access("viewer"),
    "GET /api/v1/tenants/{name}": Access("viewer", 404),
    "PATCH /api/v1/tenants/{name}": Access("admin", 403, body={"weight": 1000.0}),
    "POST /api/v1/tokens": Access("tenant-admin", 404, body={"tenant": "alpha", "role": "viewer"}),
    "GET /api/v1/tokens": Access("tenant-admin"),
    "DELETE /api/v1/tokens/{id}": Access("tenant-admin", 404),
    "GET /api/v1/session": Access("viewer"),
    "DELETE /api/v1/session": Access("viewer"),
    "GET /api/v1/whoami": Access("viewer"),
    # the platform
    "GET /api/v1/nodes": Access("viewer"),
    "POST /api/v1/nodes/{name}/cordon": Access("admin"),
    "POST /api/v1/nodes/{name}/uncordon": Access("admin"),
    "POST /api/v1/nodes/{name}/drain": Access("admin"),
    "GET /api/v1/events": Access("viewer", 404, query="?job={job}"),
    "GET /api/v1/events/stream": Access("viewer", 404, query="?job={job}"),
    "GET /api/v1/usage": Access("viewer", 404, query="?tenant=alpha"),
    "GET /api/v1/shares": Access("viewer"),
    "GET /api/v1/report": Access("viewer"),
    "GET /api/v1/state": Access("admin"),
    "GET /api/v1/audit": Access("tenant-admin", 404, query="?tenant=alpha"),
    "POST /api/v1/shutdown": Access("admin"),
    "GET /metrics": Access("admin", scraped=True),
}


def _routes() -> Iterator[str]:
    """Method and path of everything that the application answers to, as the route table has it."""
    app = create_app(cast(service.Platform, None))
    for route in routing.iter_route_contexts(app.routes):
        path = str(route.path or "").replace(":path}", "}")
        if isinstance(route.original_route, Mount):
            yield f"MOUNT {path}"
            continue
        methods = set(route.methods or ())
        yield from (f"{method} {path}" for method in methods - ({"HEAD"} if "GET" in methods else set()))


ROUTES = sorted(_routes())
GUARDED = [route for route in ROUTES if MATRIX.get(route, OPEN).least is not None]


@pytest.fixture(scope="module")
def things(platform_server: Served, alpha: Team, finished: dict[str, Any]) -> Iterator[dict[str, str]]:
    """What is alpha's, by the names that stand in the paths."""
    assert alpha.member.put(f"/api/v1/bundles/{DIGEST}", content=BUNDLE).status_code == 204
    assert alpha.admin.put("/api/v1/secrets/ALPHA_KEY", json={"value": "alpha-own-value"}).status_code in (200, 201)
    load_table(platform_server.url, alpha.tokens["member"], "bank")
    viewer = alpha.viewer.get("/api/v1/whoami").json()["token"]
    made = alpha.member.post("/api/v1/pipelines", json={"name": "flow", "stages": {"alpha-own": {"command": ["true"]}}})
    assert made.status_code == 201, made.text
    yield {
        "{job}": finished["id"],
        "{pipeline}": made.json()["id"],
        "{digest}": DIGEST,
        "{id}": viewer,
        "/tenants/{name}": "/tenants/alpha",
        "/nodes/{name}": "/nodes/node-0",
        "/secrets/{name}": "/secrets/ALPHA_KEY",
        "/datasets/{name}": "/datasets/bank",
        "/artifacts/{name}": "/artifacts/answer.txt",
    }
    assert alpha.admin.delete("/api/v1/secrets/ALPHA_KEY").status_code in (204, 404)  # the team is other files' too


def _ask(caller: httpx.Client, route: str, things: dict[str, str]) -> httpx.Response:
    method, _, path = route.partition(" ")
    access, place = MATRIX[route], path + MATRIX[route].query
    for name, value in things.items():
        place = place.replace(name, value)
    assert "{" not in place, f"{route}: say in `things` what stands for the rest of {place}"
    content = {"content": access.body} if isinstance(access.body, bytes) else {"json": access.body}
    return caller.request(method, place, **cast(dict[str, Any], content if access.body is not None else {}))


def _enough(role: str, route: str) -> bool:
    return ORDER.index(role) >= ORDER.index(str(MATRIX[route].least))


def _says(response: httpx.Response, status: int, code: str) -> bool:
    """Whether this is the answer, as a problem that tells nothing of alpha's."""
    if response.status_code != status or "hello from alpha" in response.text:
        return False
    return response.request.method == "HEAD" or response.json()["code"] == code


def test_every_route_has_an_entry_and_every_entry_a_route() -> None:
    assert set(ROUTES) == set(MATRIX), "a route that is new or gone: see the top of this file"
    assert all(access.least in (None, *ORDER) for access in MATRIX.values())


def test_what_needs_no_token_is_a_short_list() -> None:
    assert {route for route in ROUTES if MATRIX[route].least is None} == {
        "GET /", "GET /api/v1/openapi.json", "GET /healthz", "MOUNT /ui", "POST /api/v1/session",
    }  # fmt: skip


def test_logging_in_with_a_wrong_token_opens_nothing(platform_server: Served, things: dict[str, str]) -> None:
    with platform_server.caller(None) as stranger:
        response = _ask(stranger, "POST /api/v1/session", things)
    assert _says(response, 401, "unauthenticated") and "set-cookie" not in response.headers


@pytest.fixture(scope="module")
def dead_tokens(platform_server: Served, alpha: Team) -> dict[str, str]:
    """Authorization headers that open nothing, though some did once."""
    revoked = alpha.admin.post("/api/v1/tokens", json={"role": "tenant-admin"}).json()
    assert alpha.admin.delete(f"/api/v1/tokens/{revoked['id']}").status_code == 200
    expired = alpha.admin.post("/api/v1/tokens", json={"role": "tenant-admin", "expires_s": 0.05}).json()
    with platform_server.caller(expired["token"]) as caller:
        until(lambda: caller.get("/api/v1/whoami").status_code == 401)
    good = alpha.tokens["tenant-admin"]
    return {
        "none": "",
        "garbage": "Bearer garbage",
        "no secret": f"Bearer {good.rpartition('_')[0]}",
        "somebody's id, another secret": f"Bearer {good.rpartition('_')[0]}_{randomness.token_hex(24)}",
        "unknown": f"Bearer fl_{randomness.token_hex(5)}_{randomness.token_hex(24)}",
        "another scheme": f"Basic {good}",
        "revoked": f"Bearer {revoked['token']}",
        "expired": f"Bearer {expired['token']}",
    }


@pytest.mark.parametrize("route", GUARDED)
def test_without_a_good_token_nothing_opens(
    platform_server: Served, things: dict[str, str], dead_tokens: dict[str, str], route: str
) -> None:
    with platform_server.caller(None) as caller:
        for kind, header in dead_tokens.items():
            caller.headers["Authorization"] = header
            if not header:
                del caller.headers["Authorization"]
            response = _ask(caller, route, things)
            assert _says(response, 401, "unauthenticated"), (kind, response.status_code, response.text)
            assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("route", GUARDED)
def test_without_a_token_one_does_not_learn_whether_something_exists_or_fits(
    platform_server: Served, things: dict[str, str], route: str
) -> None:
    method, _, path = route.partition(" ")
    nowhere = path
    for name in things:
        nowhere = nowhere.replace(name, name.partition("{")[0] + "no-such-thing")
    with platform_server.caller(None) as caller:
        response = caller.request(method, nowhere + "?unknown=1", content=b"{not json")
    assert _says(response, 401, "unauthenticated"), response.text


@pytest.mark.parametrize("route", GUARDED)
def test_a_lesser_role_is_refused(alpha: Team, things: dict[str, str], route: str) -> None:
    needed = ORDER.index(str(MATRIX[route].least))
    for role in ORDER[:needed]:
        response = _ask(alpha.callers[role], route, things)
        assert _says(response, 403, "forbidden"), (role, response.status_code, response.text)


@pytest.fixture(scope="module")
def scraper(platform_server: Served, admin: httpx.Client) -> Iterator[httpx.Client]:
    made = admin.post("/api/v1/tokens", json={"role": "scraper"})
    assert made.status_code == 201, made.text
    with platform_server.caller(made.json()["token"]) as caller:
        yield caller


@pytest.mark.parametrize("route", GUARDED)
def test_a_scraper_reads_the_metrics_and_nothing_else(
    scraper: httpx.Client, things: dict[str, str], route: str
) -> None:
    response = _ask(scraper, route, things)
    assert response.status_code == 200 if MATRIX[route].scraped else _says(response, 403, "forbidden"), response.text


def test_a_scraper_does_not_log_in_on_the_page(platform_server: Served, scraper: httpx.Client) -> None:
    token = scraper.headers["Authorization"].removeprefix("Bearer ")
    with platform_server.caller(None) as browser:
        response = browser.post("/api/v1/session", json={"token": token})
    assert _says(response, 403, "forbidden") and "set-cookie" not in response.headers


@pytest.mark.parametrize("route", [route for route in GUARDED if MATRIX[route].stranger])
def test_a_stranger_is_told_nothing_of_another_tenant_s(beta: Team, things: dict[str, str], route: str) -> None:
    status = MATRIX[route].stranger or 404
    for role in ROLES:
        response = _ask(beta.callers[role], route, things)
        expected = status if _enough(role, route) else 403
        code = {403: "forbidden", 404: "not-found"}[expected]
        assert _says(response, expected, code), (role, response.status_code, response.text)
        assert response.request.method == "HEAD" or "alpha-own" not in response.text


def _lists() -> list[str]:
    """Everything that can be read without naming anything: of these a stranger sees the same address as the owner."""
    return [route for route in GUARDED if route.startswith("GET ") and "{" not in route and "stream" not in route]


@pytest.mark.parametrize("route", _lists())
def test_no_list_holds_anything_of_a_stranger_s(alpha: Team, beta: Team, things: dict[str, str], route: str) -> None:
    tokens = [token["id"] for token in alpha.admin.get("/api/v1/tokens").json()]
    jobs = [job["id"] for job in alpha.viewer.get("/api/v1/jobs?limit=1000").json()["items"]]
    hidden = {"alpha", "ALPHA_KEY", things["{pipeline}"], "bank", DIGEST, *tokens, *jobs}
    path = route.removeprefix("GET ")
    for role, caller in beta.callers.items():
        response = caller.get(path, params={"limit": 1000} if path.endswith(("jobs", "events", "audit")) else {})
        assert response.status_code == (200 if _enough(role, route) else 403), response.text
        answer = response.json() if response.status_code == 200 and "metrics" not in path else []
        if path.endswith("/audit"):  # of what was refused it holds what beta itself wrote
            answer = [entry for entry in answer if entry["action"] != "refused"]
        words = set(re.findall(r"[-:\w]+", json.dumps(answer)))
        assert not words & hidden, (role, path, words & hidden)


def test_the_lists_of_the_owner_hold_what_no_stranger_sees(alpha: Team, things: dict[str, str]) -> None:
    """Else the test above would find nothing as there is nothing."""
    seen = "".join(alpha.admin.get(route.removeprefix("GET ")).text for route in _lists() if "metrics" not in route)
    for name in ("alpha", "ALPHA_KEY", "bank", things["{job}"], things["{pipeline}"], things["{id}"]):
        assert name in seen


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/datasets/bank"), ("DELETE", "/datasets/bank"), ("GET", "/datasets/bank-test"),
        ("DELETE", "/secrets/ALPHA_KEY"), ("DELETE", "/tokens/{id}"), ("GET", "/pipelines/flow"),
        ("GET", "/pipelines/{pipeline}"), ("GET", "/jobs/{job}/lineage"), ("POST", "/jobs/{job}/rerun"),
    ],
)  # fmt: skip
def test_what_is_named_without_its_tenant_is_not_found_at_a_stranger_s(
    alpha: Team, beta: Team, things: dict[str, str], method: str, path: str
) -> None:
    place = f"/api/v1{path}"
    for name, value in things.items():
        place = place.replace(name, value)
    assert _says(beta.admin.request(method, place), 404, "not-found")
    assert alpha.viewer.get("/api/v1/datasets/bank").status_code == 200
    assert "ALPHA_KEY" in alpha.viewer.get("/api/v1/secrets").text


@pytest.mark.parametrize("route", [route for route in GUARDED if MATRIX[route].stranger == 404])
def test_what_is_another_tenant_s_looks_like_what_never_was(beta: Team, things: dict[str, str], route: str) -> None:
    """The answers differ only in the names that the asking one wrote itself."""
    never = things | {"{job}": "finished-zzzzzz", "{pipeline}": "flow-zzzzzz", "{digest}": "sha256:" + "0" * 64,
                      "{id}": "0" * 10, "/tenants/{name}": "/tenants/nobody"}  # fmt: skip
    theirs, nobodys = _ask(beta.admin, route, things), _ask(beta.admin, route, never)
    assert theirs.status_code == nobodys.status_code == 404
    if theirs.request.method == "HEAD" or "tenant=alpha" in str(theirs.request.url):
        return
    assert {**theirs.json(), "request_id": 0}.keys() == {**nobodys.json(), "request_id": 0}.keys()
    assert theirs.json()["title"] == nobodys.json()["title"] and theirs.json().get("fix") == nobodys.json().get("fix")


def test_a_viewer_s_refusals_changed_nothing(alpha: Team, admin: httpx.Client, things: dict[str, str]) -> None:
    assert [tenant["weight"] for tenant in alpha.viewer.get("/api/v1/tenants").json()] == [2.0]
    assert not [job for job in alpha.viewer.get("/api/v1/jobs").json()["items"] if job["name"] == "not-allowed"]
    assert "not-allowed" not in {tenant["name"] for tenant in admin.get("/api/v1/tenants").json()}
    nodes = admin.get("/api/v1/nodes")
    assert nodes.status_code == 200, nodes.text
    assert {node["state"] for node in nodes.json()} == {"ready"}
    assert alpha.viewer.get("/api/v1/whoami").status_code == 200
