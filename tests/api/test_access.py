"""Who may do what: tenants are strangers to each other, roles end where they end, and dead tokens open nothing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.conftest import Served, Team
from tests.waiting import until

BUNDLE = b"alpha's own code"
DIGEST = "sha256:" + hashlib.sha256(BUNDLE).hexdigest()


@pytest.mark.parametrize("role", ["tenant-admin", "member", "viewer"])
@pytest.mark.parametrize(
    "place", ["", "/why", "/logs", "/logs?follow=true", "/metrics", "/result", "/artifacts/answer.txt"]
)
def test_another_tenant_s_job_does_not_exist_for_anybody_else(
    beta: Team, finished: dict[str, Any], place: str, role: str
) -> None:
    for ref in (finished["id"], finished["id"][:-2], finished["name"]):
        response = beta.callers[role].get(f"/api/v1/jobs/{ref}{place}")
        assert response.status_code == 404 and "hello from alpha" not in response.text


@pytest.mark.parametrize("role", ["tenant-admin", "member"])
def test_another_tenant_s_job_cannot_be_cancelled(alpha: Team, beta: Team, waiting: dict[str, Any], role: str) -> None:
    assert beta.callers[role].post(f"/api/v1/jobs/{waiting['id']}/cancel").status_code == 404
    assert alpha.member.get(f"/api/v1/jobs/{waiting['id']}").json()["state"] not in ("stopping", "cancelled")


def test_lists_hold_only_one_s_own(alpha: Team, beta: Team, waiting: dict[str, Any]) -> None:
    made = beta.member.post("/api/v1/jobs", json={"name": "betas-own", "command": ["true"]}).json()
    for team, other, own in ((alpha, beta, waiting), (beta, alpha, made)):
        listed = team.viewer.get("/api/v1/jobs", params={"limit": 1000}).json()["items"]
        assert {job["tenant"] for job in listed} == {team.name} and own["id"] in {job["id"] for job in listed}
        assert [tenant["name"] for tenant in team.viewer.get("/api/v1/tenants").json()] == [team.name]
        assert team.viewer.get(f"/api/v1/tenants/{other.name}").status_code == 404
        assert {token["tenant"] for token in team.admin.get("/api/v1/tokens").json()} == {team.name}
        assert {line["tenant"] for line in team.viewer.get("/api/v1/report").json()["jobs"]} <= {team.name}


def test_one_may_not_ask_for_another_tenant_s_things_by_name(alpha: Team, beta: Team) -> None:
    assert beta.member.get("/api/v1/jobs", params={"tenant": "alpha"}).status_code in (403, 404)
    body = {"name": "cuckoo", "tenant": "alpha", "command": ["true"]}
    assert beta.member.post("/api/v1/jobs", json=body).status_code in (403, 404)
    assert beta.member.post("/api/v1/jobs/dry-run", json=body).status_code in (403, 404)
    assert beta.admin.post("/api/v1/tokens", json={"tenant": "alpha", "role": "viewer"}).status_code in (403, 404)


def test_events_of_another_tenant_are_not_seen(alpha: Team, beta: Team, waiting: dict[str, Any]) -> None:
    seen = beta.viewer.get("/api/v1/events", params={"limit": 1000}).json()
    assert {event["tenant"] for event in seen} <= {None, "beta"} and waiting["id"] not in str(seen)
    assert waiting["id"] in str(alpha.viewer.get("/api/v1/events", params={"limit": 1000}).json())
    assert beta.viewer.get("/api/v1/events", params={"job": waiting["id"]}).status_code == 404
    assert beta.viewer.get("/api/v1/events/stream", params={"job": waiting["id"]}).status_code == 404


def test_a_bundle_is_its_tenant_s_own(alpha: Team, beta: Team, admin: httpx.Client) -> None:
    place = f"/api/v1/bundles/{DIGEST}"
    assert alpha.member.head(place).status_code == 404
    assert alpha.member.put(place, content=BUNDLE).status_code == 204
    assert alpha.member.head(place).status_code == 200
    assert alpha.member.put(place, content=BUNDLE).status_code == 204  # again is no harm
    assert beta.member.head(place).status_code == 404
    assert beta.member.head(place, params={"tenant": "alpha"}).status_code in (403, 404)
    stolen = {"name": "thief", "run": "train.py:training", "code": DIGEST}
    assert beta.member.post("/api/v1/jobs", json=stolen).status_code == 404
    assert admin.head(place, params={"tenant": "alpha"}).status_code == 200


def test_a_tenants_code_takes_no_more_disk_than_it_may(beta: Team, admin: httpx.Client) -> None:
    assert admin.patch("/api/v1/tenants/beta", json={"policy": {"disk": 3 * len(BUNDLE)}}).status_code == 200
    codes = [BUNDLE + bytes([number]) for number in range(3)]
    places = [f"/api/v1/bundles/sha256:{hashlib.sha256(code).hexdigest()}" for code in codes]
    answers = [beta.member.put(place, content=code) for place, code in zip(places, codes, strict=True)]
    assert [answer.status_code for answer in answers] == [204, 204, 413]
    assert "code of tenant beta holds" in answers[2].text and "fairlead tenant update beta --disk" in answers[2].text
    assert beta.member.put(places[0], content=codes[0]).status_code == 204, "it is there already"
    assert beta.member.head(places[2]).status_code == 404
    assert admin.patch("/api/v1/tenants/beta", json={"policy": {"disk": 10 << 30}}).status_code == 200
    assert beta.member.put(places[2], content=codes[2]).status_code == 204


def test_uploads_that_do_not_end_take_no_more_disk_than_the_tenant_may(beta: Team, admin: httpx.Client) -> None:
    assert admin.patch("/api/v1/tenants/beta", json={"policy": {"disk": 64 << 20}}).status_code == 200
    codes = [bytes([number]) * (40 << 20) for number in range(2)]
    places = [f"/api/v1/bundles/sha256:{hashlib.sha256(code).hexdigest()}" for code in codes]
    refused: list[int] = []

    def half() -> Iterator[bytes]:
        yield codes[0][: 30 << 20]
        refused.append(beta.member.put(places[1], content=codes[1]).status_code)
        yield codes[0][30 << 20 :]

    with httpx.Client(base_url=beta.member.base_url, headers=beta.member.headers, timeout=60.0) as other:
        assert other.put(places[0], content=half()).status_code == 204
    assert refused == [413]
    assert beta.member.head(places[0]).status_code == 200 and beta.member.head(places[1]).status_code == 404
    assert admin.patch("/api/v1/tenants/beta", json={"policy": {"disk": 10 << 30}}).status_code == 200
    assert beta.member.put(places[1], content=codes[1]).status_code == 204, "what was refused counts no longer"


def test_a_tenant_has_no_more_jobs_at_once_than_it_may(beta: Team, admin: httpx.Client) -> None:
    def submit(key: str) -> httpx.Response:
        body = {"name": "crowd", "command": ["sleep", "600"]}
        return beta.member.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": key})

    first = submit("crowd-1")
    assert first.status_code == 201
    assert admin.patch("/api/v1/tenants/beta", json={"policy": {"jobs": 1}}).status_code == 200
    refused = submit("crowd-2")
    assert refused.status_code == 409 and "fairlead tenant update beta --jobs 2" in refused.text, refused.text
    asked = beta.member.post("/api/v1/jobs/dry-run", json={"name": "crowd", "command": ["true"]}).json()
    assert not asked["admitted"] and "has 1 running and waiting jobs" in asked["reason"]["text"]
    assert submit("crowd-1").json()["id"] == first.json()["id"], "who asks again gets what it had"
    assert admin.patch("/api/v1/tenants/beta", json={"policy": {"jobs": 10_000}}).status_code == 200
    second = submit("crowd-2")
    assert second.status_code == 201
    for job in (first, second):
        beta.member.post(f"/api/v1/jobs/{job.json()['id']}/cancel")


FORBIDDEN = [
    ("viewer", "POST", "/jobs", {"name": "no", "command": ["true"]}),
    ("viewer", "POST", "/jobs/{waiting}/cancel", None),
    ("viewer", "PUT", f"/bundles/{DIGEST}", None),
    ("viewer", "POST", "/tokens", {"role": "viewer"}),
    ("viewer", "GET", "/tokens", None),
    ("viewer", "POST", "/shutdown", None),
    ("viewer", "GET", "/audit", None),
    ("member", "POST", "/tokens", {"role": "viewer"}),
    ("member", "GET", "/tokens", None),
    ("member", "POST", "/tenants", {"name": "mine"}),
    ("member", "PATCH", "/tenants/alpha", {"weight": 1000}),
    ("member", "POST", "/nodes/node-0/drain", None),
    ("member", "POST", "/shutdown", None),
    ("member", "GET", "/audit", None),
    ("tenant-admin", "POST", "/tenants", {"name": "mine"}),
    ("tenant-admin", "PATCH", "/tenants/alpha", {"weight": 1000}),
    ("tenant-admin", "PATCH", "/tenants/beta", {"weight": 0.001}),
    ("tenant-admin", "POST", "/tokens", {"role": "admin"}),
    ("tenant-admin", "POST", "/nodes/node-0/cordon", None),
    ("tenant-admin", "POST", "/nodes/node-0/uncordon", None),
    ("tenant-admin", "POST", "/shutdown", None),
]


@pytest.mark.parametrize(("role", "method", "path", "body"), FORBIDDEN, ids=lambda part: str(part)[:30])
def test_a_role_ends_where_it_ends(
    alpha: Team, waiting: dict[str, Any], role: str, method: str, path: str, body: dict[str, Any] | None
) -> None:
    place = f"/api/v1{path}".replace("{waiting}", waiting["id"])
    response = alpha.callers[role].request(method, place, json=body)
    assert response.status_code == 403 and response.json()["code"] == "forbidden", response.text
    assert role in response.text


def test_only_a_scraper_and_an_admin_read_the_metrics_of_all(
    platform_server: Served, admin: httpx.Client, alpha: Team
) -> None:
    assert alpha.admin.get("/metrics").status_code == 403
    made = admin.post("/api/v1/tokens", json={"role": "scraper", "label": "prometheus"})
    assert made.status_code == 201 and made.json()["tenant"] is None, made.text
    with platform_server.caller(made.json()["token"]) as scraper:
        for caller in (admin, scraper):
            response = caller.get("/metrics")
            assert response.status_code == 200 and "fairlead_nodes" in response.text
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_only_an_admin_makes_a_scraper_s_token(admin: httpx.Client, alpha: Team) -> None:
    assert alpha.admin.post("/api/v1/tokens", json={"role": "scraper"}).status_code == 403
    assert alpha.admin.post("/api/v1/tokens", json={"role": "scraper", "tenant": "alpha"}).status_code == 422
    assert admin.post("/api/v1/tokens", json={"role": "scraper", "tenant": "alpha"}).status_code == 422


def test_a_viewer_may_look(alpha: Team, finished: dict[str, Any]) -> None:
    for place in (
        "/jobs",
        f"/jobs/{finished['id']}",
        f"/jobs/{finished['id']}/logs",
        "/nodes",
        "/events",
        "/report",
        "/whoami",
    ):
        assert alpha.viewer.get(f"/api/v1{place}").status_code == 200, place


def test_health_needs_no_token_and_tells_no_secrets(platform_server: Served) -> None:
    with platform_server.caller(None) as stranger:
        response = stranger.get("/healthz")
    assert response.status_code == 200 and response.json()["status"] == "ok" and response.json()["leader"] is True
    assert set(response.json()) == {"status", "leader", "version"}


def test_a_token_is_revoked_at_once(platform_server: Served, alpha: Team) -> None:
    made = alpha.admin.post("/api/v1/tokens", json={"role": "member", "label": "short-lived"})
    assert made.status_code == 201 and made.json()["tenant"] == "alpha"
    with platform_server.caller(made.json()["token"]) as caller:
        assert caller.get("/api/v1/whoami").json()["token"] == made.json()["id"]
        gone = alpha.admin.delete(f"/api/v1/tokens/{made.json()['id']}")
        assert gone.status_code == 200 and gone.json()["revoked_s"]
        _is_refused(caller)


def test_another_tenant_s_token_cannot_be_revoked(alpha: Team, beta: Team) -> None:
    token_id = alpha.viewer.get("/api/v1/whoami").json()["token"]
    assert beta.admin.delete(f"/api/v1/tokens/{token_id}").status_code == 404
    assert alpha.viewer.get("/api/v1/whoami").status_code == 200


def test_a_token_expires_after_so_many_seconds(platform_server: Served, alpha: Team) -> None:
    made = alpha.admin.post("/api/v1/tokens", json={"role": "viewer", "expires_s": 1.5}).json()
    assert made["expires_s"] == pytest.approx(time.time() + 1.5, abs=1.5)
    with platform_server.caller(made["token"]) as caller:
        assert caller.get("/api/v1/whoami").status_code == 200
        until(lambda: caller.get("/api/v1/whoami").status_code == 401)
        _is_refused(caller)


@pytest.mark.parametrize(
    "change", [lambda t: t[:-1] + ("0" if t[-1] != "0" else "1"), lambda t: t + "0", lambda t: t[:-1], str.upper]
)
def test_a_token_that_is_nearly_right_is_wrong(platform_server: Served, alpha: Team, change: Any) -> None:
    with platform_server.caller(change(alpha.tokens["member"])) as caller:
        _is_refused(caller)


def test_a_secret_is_shown_once_and_never_again(admin: httpx.Client, alpha: Team) -> None:
    shown = "".join(
        admin.get(f"/api/v1{place}").text for place in ("/tokens", "/audit?limit=1000", "/events?limit=1000")
    )
    for token in alpha.tokens.values():
        assert token.rpartition("_")[2] not in shown


def test_what_was_done_is_in_the_audit_log(admin: httpx.Client, alpha: Team) -> None:
    actions = {entry["action"] for entry in admin.get("/api/v1/audit", params={"limit": 1000}).json()}
    assert {"tenant.create", "token.create"} <= actions


def _is_refused(caller: httpx.Client) -> None:
    response = caller.get("/api/v1/whoami")
    assert response.status_code == 401 and response.headers["www-authenticate"].startswith("Bearer")
    assert response.headers["content-type"] == "application/problem+json"
    assert caller.get("/api/v1/events/stream").status_code == 401
