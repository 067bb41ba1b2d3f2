"""Accounts over HTTP: usage and audit for those who may see them, and budgets that refuse with a date."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.api.conftest import Served, Team, run_to_its_end
from tests.waiting import until


def _usage(caller: httpx.Client, **params: Any) -> dict[str, Any]:
    response = caller.get("/api/v1/usage", params=params)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_what_a_job_used_stands_under_its_tenant_user_and_label(admin: httpx.Client, alpha: Team) -> None:
    job = run_to_its_end(alpha.member, {"name": "counted", "command": ["true"], "labels": {"run": "seven"}})
    found = _usage(alpha.viewer, by="job,user,label:run,tenant,node,device")
    mine = [line for line in found["lines"] if line["keys"]["job"] == job["id"]]
    assert mine and all(line["device_hours"] > 0 and line["jobs"] == 1 for line in mine)
    assert mine[0]["keys"]["user"] == alpha.member.get("/api/v1/whoami").json()["token"]
    assert mine[0]["user_label"] == "member of alpha"
    assert mine[0]["keys"] | {"label:run": "seven", "tenant": "alpha", "device": "cpu"} == mine[0]["keys"]
    assert found["total"]["device_hours"] == pytest.approx(sum(line["device_hours"] for line in found["lines"]))
    everything = _usage(admin, by="tenant")
    assert "alpha" in [line["keys"]["tenant"] for line in everything["lines"]]
    assert _usage(admin, by="tenant", limit=1)["groups"] == everything["groups"]


def test_a_tenant_sees_its_own_use_only(alpha: Team, beta: Team, finished: dict[str, Any]) -> None:
    assert {line["keys"]["tenant"] for line in _usage(alpha.viewer, by="tenant")["lines"]} == {"alpha"}
    assert finished["id"] not in str(_usage(beta.viewer, by="job"))
    assert beta.admin.get("/api/v1/usage", params={"tenant": "alpha"}).status_code == 404


@pytest.mark.parametrize(
    "params",
    [
        {"by": "colour"}, {"by": ""}, {"by": "tenant,tenant"}, {"by": "label:"}, {"by": 'label:"'}, {"by": "job:x"},
        {"since_s": 10, "until_s": 5}, {"since_s": -1}, {"until_s": "inf"}, {"since_s": "nan"}, {"limit": 0},
        {"what": 1},
        {"by": ",".join(["tenant"] * 50)},
    ],
)  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused_with_a_fix(admin: httpx.Client, params: dict[str, Any]) -> None:
    response = admin.get("/api/v1/usage", params=params)
    assert response.status_code == 422 and response.json()["fix"], response.text


def test_a_tenant_admin_reads_what_was_done_to_its_tenant(admin: httpx.Client, alpha: Team, beta: Team) -> None:
    admin.patch("/api/v1/tenants/alpha", json={"quota": 64})
    admin.patch("/api/v1/tenants/beta", json={"quota": 64})
    entries = alpha.admin.get("/api/v1/audit", params={"after": -1000, "limit": 1000}).json()
    assert {entry["tenant"] for entry in entries} == {"alpha"}
    changed = [entry for entry in entries if entry["action"] == "tenant.update"]
    assert changed and changed[-1]["detail"] == {"quota": 64}
    assert changed[-1]["actor_label"] is None  # the platform's tokens are not theirs to know
    assert beta.admin.get("/api/v1/audit", params={"tenant": "alpha"}).status_code == 404


def test_the_audit_log_can_be_filtered(admin: httpx.Client, alpha: Team) -> None:
    actor = alpha.admin.get("/api/v1/whoami").json()["token"]
    made = alpha.admin.post("/api/v1/tokens", json={"role": "viewer", "label": "of the filter"}).json()
    alpha.admin.delete(f"/api/v1/tokens/{made['id']}")
    newest = admin.get("/api/v1/audit", params={"actor": actor, "action": "token.", "after": -2}).json()
    assert [(entry["action"], entry["target"]) for entry in newest] == [
        ("token.create", made["id"]), ("token.revoke", made["id"]),
    ]  # fmt: skip
    assert newest[0]["actor_label"] == "first token"
    later = newest[-1]["time_s"] + 1e-3
    assert admin.get("/api/v1/audit", params={"actor": actor, "since_s": later}).json() == []


def test_every_submission_and_every_attempt_at_more_is_on_record(admin: httpx.Client, alpha: Team) -> None:
    actor = alpha.viewer.get("/api/v1/whoami").json()["token"]
    for _ in range(3):
        assert alpha.viewer.post("/api/v1/nodes/node-0/drain").status_code == 403
    noted = admin.get("/api/v1/audit", params={"actor": actor, "action": "refused", "limit": 1000}).json()
    drains = [entry for entry in noted if entry["target"] == "POST /api/v1/nodes/node-0/drain"]
    assert len(drains) == 1  # again and again is not more than once
    assert drains[0]["detail"]["role"] == "viewer" and drains[0]["tenant"] == "alpha"
    job = run_to_its_end(alpha.member, {"name": "recorded", "command": ["true"]})
    submitted = admin.get("/api/v1/audit", params={"action": "job.submit", "after": -1000, "limit": 1000}).json()
    assert job["id"] in [entry["target"] for entry in submitted]


def test_a_token_list_tells_when_each_was_last_used(admin: httpx.Client, alpha: Team) -> None:
    fresh = alpha.admin.post("/api/v1/tokens", json={"role": "viewer", "label": "never used"}).json()
    actor = alpha.member.get("/api/v1/whoami").json()["token"]

    def known() -> dict[str, Any] | None:
        found = {token["id"]: token for token in admin.get("/api/v1/tokens").json()}
        return found if found[actor]["used_s"] else None

    assert until(known)[fresh["id"]]["used_s"] is None


@pytest.fixture
def poor(platform_server: Served, admin: httpx.Client) -> Any:
    """A tenant that has used up its budget of a moment: the caller of its token."""
    made = admin.post("/api/v1/tenants", json={"name": "poor"})
    if made.status_code == 409:
        admin.patch("/api/v1/tenants/poor", json={"budget": None})
        token = admin.post("/api/v1/tokens", json={"tenant": "poor", "role": "tenant-admin"}).json()["token"]
    else:
        token = made.json()["token"]["token"]
    with platform_server.caller(token) as caller:
        run_to_its_end(caller, {"name": "spend", "command": ["true"]})
        budget = {"device_hours": 1e-9, "per": "month"}
        assert admin.patch("/api/v1/tenants/poor", json={"budget": budget}).status_code == 200
        yield caller


def _next_month() -> str:
    now = datetime.now(UTC)
    return f"{now.year + now.month // 12:04d}-{now.month % 12 + 1:02d}-01 00:00 UTC"


def test_a_used_up_budget_refuses_with_the_date(admin: httpx.Client, poor: httpx.Client) -> None:
    refused = poor.post("/api/v1/jobs", json={"name": "more", "command": ["true"]})
    assert refused.status_code == 409, refused.text
    problem = refused.json()
    assert problem["code"] == "over-budget" and problem["field"] == "budget" and problem["value"] == "1e-09h/month"
    assert _next_month() in problem["fix"]
    rehearsed = poor.post("/api/v1/jobs/dry-run", json={"name": "more", "command": ["true"]}).json()
    assert rehearsed["admitted"] is False and _next_month() in rehearsed["reason"]["text"]
    spending = poor.get("/api/v1/tenants/poor").json()["spending"]
    assert spending["used_up"] is True and spending["used_hours"] > 1e-9 and spending["per"] == "month"
    assert admin.patch("/api/v1/tenants/poor", json={"budget": None}).json()["spending"] is None
    assert poor.post("/api/v1/jobs", json={"name": "more", "command": ["true"]}).status_code == 201


def test_who_asks_again_for_what_was_admitted_gets_it(admin: httpx.Client, poor: httpx.Client) -> None:
    admin.patch("/api/v1/tenants/poor", json={"budget": None})
    key, spec = {"Idempotency-Key": "before"}, {"name": "before", "command": ["true"]}
    first = poor.post("/api/v1/jobs", json=spec, headers=key)
    admin.patch("/api/v1/tenants/poor", json={"budget": {"device_hours": 1e-9}})
    again = poor.post("/api/v1/jobs", json=spec, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)


def test_the_end_of_a_budget_is_told_once(admin: httpx.Client, poor: httpx.Client) -> None:
    def told() -> list[dict[str, Any]]:
        events = poor.get("/api/v1/events", params={"after": -1000, "limit": 1000}).json()
        return [event for event in events if event["kind"] == "budget-used-up"]

    until(told)
    for weight in (2, 3):  # rounds that could say it again
        admin.patch("/api/v1/tenants/poor", json={"weight": weight})
    admin.patch("/api/v1/tenants/poor", json={"budget": {"device_hours": 2e-9}})
    until(lambda: len(told()) == 2)  # another budget is another story
    assert [event["facts"]["device_hours"] for event in told()] == [1e-9, 2e-9]
    assert _next_month() in told()[0]["text"]


def test_retention_is_changed_field_by_field(admin: httpx.Client, alpha: Team) -> None:
    admin.patch("/api/v1/tenants/alpha", json={"policy": {"retention": {"logs": "30d"}}})
    changed = admin.patch("/api/v1/tenants/alpha", json={"policy": {"retention": {"results": "90d"}}}).json()
    assert changed["policy"]["retention"] == {"logs": 2592000.0, "metrics": None, "results": 7776000.0, "jobs": None}
    cleared = admin.patch("/api/v1/tenants/alpha", json={"policy": {"retention": {"logs": None, "results": None}}})
    assert set(cleared.json()["policy"]["retention"].values()) == {None}
