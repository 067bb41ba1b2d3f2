"""Tenants above and below each other over HTTP: made, changed, refused, and left as they were when refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .conftest import Team

TENANTS = "/api/v1/tenants"


@pytest.fixture(scope="module")
def org(admin: httpx.Client) -> Iterator[httpx.Client]:
    """An organisation with a team below it."""
    for body in ({"name": "org", "weight": 2.0}, {"name": "org-team", "parent": "org", "weight": 3.0}):
        assert admin.post(TENANTS, json=body).status_code == 201
    yield admin
    for name in ("org", "org-team"):
        admin.patch(f"{TENANTS}/{name}", json={"guarantee": {}, "most": {}})


def view(caller: httpx.Client, name: str) -> Any:
    return caller.get(f"{TENANTS}/{name}").json()


def test_a_team_divides_what_its_organisation_may_claim(org: httpx.Client) -> None:
    above, below = view(org, "org"), view(org, "org-team")
    assert (above["parent"], below["parent"]) == (None, "org")
    assert below["share"] == pytest.approx(above["share"]) and below["share"] > 0


def test_limits_by_type_are_changed_in_what_is_named(org: httpx.Client) -> None:
    changed = org.patch(f"{TENANTS}/org", json={"guarantee": {"cpu": 1}, "most": {"cpu": 2}}).json()
    assert (changed["guarantee"], changed["most"], changed["weight"]) == ({"cpu": 1}, {"cpu": 2}, 2.0)
    assert org.patch(f"{TENANTS}/org", json={"weight": 2.0}).json()["guarantee"] == {"cpu": 1}
    assert org.patch(f"{TENANTS}/org-team", json={"guarantee": {"cpu": 1}}).status_code == 200
    assert org.patch(f"{TENANTS}/org", json={"guarantee": {}}).json()["field"] == "guarantee"  # its team has it
    assert org.patch(f"{TENANTS}/org-team", json={"guarantee": {}}).json()["guarantee"] == {}
    assert org.patch(f"{TENANTS}/org", json={"guarantee": {}, "most": {}}).json()["most"] == {}


@pytest.mark.parametrize(
    ("name", "change", "status", "field"),
    [
        ("org", {"parent": "org-team"}, 409, "parent"),
        ("org", {"parent": "nobody"}, 404, "parent"),
        ("org", {"parent": "org"}, 422, "parent"),
        ("org-team", {"guarantee": {"cpu": 1}}, 409, "guarantee"),
        ("org", {"guarantee": {"cpu": 1000}}, 409, "guarantee"),
        ("org", {"guarantee": {"a100": 1}}, 409, "guarantee"),
        ("org", {"guarantee": {"cpu": 2}, "most": {"cpu": 1}}, 422, "guarantee"),
        ("org", {"most": {"cpu": -1}}, 422, "most.cpu"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    org: httpx.Client, name: str, change: dict[str, Any], status: int, field: str
) -> None:
    before = view(org, name)
    answer = org.patch(f"{TENANTS}/{name}", json=change)
    problem = answer.json()
    assert (answer.status_code, problem["field"]) == (status, field) and problem["fix"] and problem["detail"]
    after = view(org, name)
    assert {key: after[key] for key in ("parent", "guarantee", "most")} == {
        key: before[key] for key in ("parent", "guarantee", "most")
    }


def test_a_tenant_that_is_refused_was_not_made(org: httpx.Client) -> None:
    assert org.post(TENANTS, json={"name": "stray", "parent": "nobody"}).status_code == 404
    assert org.get(f"{TENANTS}/stray").status_code == 404


def test_only_an_administrator_moves_tenants(alpha: Team) -> None:
    assert alpha.admin.patch(f"{TENANTS}/alpha", json={"parent": None}).status_code == 403


def test_a_gang_larger_than_any_limit_above_it_allows_is_refused_at_once(org: httpx.Client) -> None:
    org.patch(f"{TENANTS}/org", json={"most": {"cpu": 1}})
    job = {"name": "wide", "tenant": "org-team", "command": ["true"], "workers": 2}
    answer = org.post("/api/v1/jobs", json=job)
    problem = answer.json()
    assert (answer.status_code, problem["field"], problem["value"]) == (409, "workers.min", 2)
    assert "org" in problem["detail"] and org.post("/api/v1/jobs/dry-run", json=job).json()["admitted"] is False
    org.patch(f"{TENANTS}/org", json={"most": {}})


def test_it_is_told_whose_jobs_a_tenant_has(alpha: Team, beta: Team, waiting: dict[str, Any]) -> None:
    found = {person["user"]: person for person in view(alpha.viewer, "alpha")["people"]}
    mine = found[waiting["submitted_by"]]
    assert mine["running"] + mine["queued"] >= 1 and mine["user_label"]
    assert waiting["submitted_by"] not in [person["user"] for person in view(beta.viewer, "beta")["people"]]
