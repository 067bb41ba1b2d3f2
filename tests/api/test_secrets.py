"""Secrets over HTTP: who may set, list and use them, and that no answer ever holds a value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.conftest import Team, run_to_its_end

VALUE = "fl-value-0123456789abcdef"


@pytest.fixture
def kept(alpha: Team) -> Iterator[str]:
    made = alpha.admin.put("/api/v1/secrets/API_KEY", json={"value": VALUE})
    assert made.status_code == 200, made.text
    assert VALUE not in made.text
    yield "API_KEY"
    alpha.admin.delete("/api/v1/secrets/API_KEY")


@pytest.mark.parametrize("role", ["tenant-admin", "member", "viewer"])
def test_every_role_sees_names_and_nobody_a_value(alpha: Team, kept: str, role: str) -> None:
    answer = alpha.callers[role].get("/api/v1/secrets")
    assert [secret["name"] for secret in answer.json()] == [kept]
    assert set(answer.json()[0]) == {"name", "tenant", "changed_s", "changed_by"}
    assert VALUE not in answer.text


@pytest.mark.parametrize("role", ["member", "viewer"])
def test_only_those_who_lead_a_tenant_set_and_remove(alpha: Team, kept: str, role: str) -> None:
    caller = alpha.callers[role]
    assert caller.put("/api/v1/secrets/OTHER", json={"value": VALUE}).status_code == 403
    assert caller.delete(f"/api/v1/secrets/{kept}").status_code == 403


@pytest.mark.parametrize("role", ["tenant-admin", "member", "viewer"])
def test_another_tenants_secrets_do_not_exist(beta: Team, kept: str, role: str) -> None:
    caller = beta.callers[role]
    assert caller.get("/api/v1/secrets").json() == []
    assert caller.get("/api/v1/secrets", params={"tenant": "alpha"}).status_code == 404
    assert caller.delete(f"/api/v1/secrets/{kept}").status_code in (403, 404)
    put = caller.put(f"/api/v1/secrets/{kept}", params={"tenant": "alpha"}, json={"value": "another value"})
    assert put.status_code in (403, 404)
    stolen = {"name": "thief", "command": ["env"], "secrets": [kept]}
    assert caller.post("/api/v1/jobs", json=stolen).status_code in (403, 422)


def test_an_admin_names_the_tenant(admin: httpx.Client, alpha: Team, kept: str) -> None:
    assert admin.get("/api/v1/secrets").status_code == 422
    listed = admin.get("/api/v1/secrets", params={"tenant": "alpha"}).json()
    assert [secret["name"] for secret in listed] == [kept]
    assert admin.get("/api/v1/secrets", params={"tenant": "nobody"}).status_code == 404
    made = admin.put("/api/v1/secrets/BY_ADMIN", params={"tenant": "alpha"}, json={"value": VALUE})
    assert made.json()["tenant"] == "alpha"
    assert admin.delete("/api/v1/secrets/BY_ADMIN", params={"tenant": "alpha"}).status_code == 204
    assert admin.delete("/api/v1/secrets/BY_ADMIN", params={"tenant": "alpha"}).status_code == 404


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("lower", {"value": VALUE}),
        ("FAIRLEAD_KEY", {"value": VALUE}),
        ("KEY", {"value": "abc"}),
        ("KEY", {"value": 12_345_678}),
        ("KEY", {"valeu": VALUE}),
        ("KEY", {"value": VALUE, "more": 1}),
        ("KEY", [VALUE]),
        ("KEY", {"value": "x" * 40_000}),
    ],
)
def test_what_is_no_secret_is_refused_and_not_repeated(alpha: Team, name: str, body: Any) -> None:
    answer = alpha.admin.put(f"/api/v1/secrets/{name}", json=body)
    assert answer.status_code == 422 and answer.json()["fix"]
    assert VALUE not in answer.text and "12345678" not in answer.text and "xxxx" not in answer.text


def test_a_job_gets_its_secret_and_no_answer_of_the_platform_shows_it(
    admin: httpx.Client, alpha: Team, kept: str
) -> None:
    script = 'echo "it is $API_KEY"; printf "%s" "${#API_KEY}" > "$FAIRLEAD_OUTPUT/length"; exit 3'
    job = run_to_its_end(alpha.member, {"name": "uses", "command": ["sh", "-c", script], "secrets": [kept]})
    place = f"/api/v1/jobs/{job['id']}"
    assert alpha.member.get(f"{place}/artifacts/length").text == str(len(VALUE))
    assert "it is ***API_KEY***" in alpha.member.get(f"{place}/logs").text
    for path in (place, f"{place}/logs", f"{place}/why", f"{place}/result", "/api/v1/events", "/api/v1/jobs"):
        assert VALUE not in alpha.member.get(path).text
    assert VALUE not in admin.get("/api/v1/audit", params={"limit": 1000}).text


def test_a_job_that_asks_for_an_unknown_secret_is_refused_at_once(alpha: Team) -> None:
    spec = {"name": "asks", "command": ["true"], "secrets": ["NO_SUCH"]}
    for place in ("/api/v1/jobs", "/api/v1/jobs/dry-run"):
        problem = alpha.member.post(place, json=spec).json()
        assert (problem["status"], problem["field"], problem["value"]) == (422, "secrets", "NO_SUCH")
        assert problem["fix"] == "set it first: fairlead secret set NO_SUCH"
    both = {"name": "asks", "command": ["true"], "secrets": ["A"], "env": {"A": "b"}}
    assert alpha.member.post("/api/v1/jobs", json=both).status_code == 422
