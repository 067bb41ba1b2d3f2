"""Cancelling many jobs over HTTP: a tenant its own only, and only those that fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fairlead.errors import FairleadError, Forbidden, InvalidSpec, NotFound
from fairlead.sdk.client import Client
from tests.waiting import until

from .conftest import Served, Team, team

CANCEL = "/api/v1/jobs/cancel"


def submit(team: Team, name: str, **fields: Any) -> str:
    body = {"name": name, "command": ["sleep", "86400"], "workers": 1, **fields}
    answer = team.member.post("/api/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def states(caller: httpx.Client, jobs: list[str]) -> list[str]:
    return [caller.get(f"/api/v1/jobs/{job}").json()["state"] for job in jobs]


def newest_entry(team: Team) -> int:
    """The id of the newest audit entry of this tenant; 0: it has none."""
    return max((entry["id"] for entry in team.admin.get("/api/v1/audit?after=-1").json()), default=0)


def cancellations(team: Team, after: int) -> list[dict[str, Any]]:
    """Audit entries of cancelled jobs since then: other tests have cancelled jobs of these tenants, too."""
    found: list[dict[str, Any]] = team.admin.get(f"/api/v1/audit?after={after}&action=job.cancel").json()
    return found


@pytest.fixture(scope="module")
def alpha(platform_server: Served, admin: httpx.Client) -> Team:
    """A tenant of this file's own: all that it has is cancelled here."""
    return team(platform_server, admin, "sweep-alpha")


@pytest.fixture(scope="module")
def beta(platform_server: Served, admin: httpx.Client) -> Team:
    return team(platform_server, admin, "sweep-beta")


@pytest.fixture
def sweep(alpha: Team, beta: Team) -> Iterator[dict[str, list[str]]]:
    """Jobs of two tenants that all could be meant."""
    label = {"labels": {"sweep": "many"}}
    teams = {"alpha": alpha, "beta": beta}
    found = {name: [submit(team, f"many-{n}", **label) for n in range(3)] for name, team in teams.items()}
    found["other"] = [submit(alpha, "other")]
    yield found
    for one, jobs in ((alpha, found["alpha"] + found["other"]), (beta, found["beta"])):  # a failed test leaves none
        for job in jobs:
            one.member.post(f"/api/v1/jobs/{job}/cancel")


def test_a_tenant_cancels_all_that_fit_and_nothing_of_anybody_else(
    sweep: dict[str, list[str]], alpha: Team, beta: Team, platform_server: Served
) -> None:
    client = Client(platform_server.url, alpha.tokens["member"])
    meant = {"name": "many-*", "labels": {"sweep": "many"}}
    before = newest_entry(alpha), newest_entry(beta)
    counted = client.cancel_jobs(**meant, dry_run=True)
    assert (counted.cancelled, counted.dry_run) == (3, True)
    assert set(counted.jobs) == set(sweep["alpha"])
    assert "cancelled" not in states(alpha.member, sweep["alpha"])
    assert client.cancel_jobs(**meant).cancelled == 3
    assert client.cancel_jobs(**meant).cancelled == 0
    until(lambda: set(states(alpha.member, sweep["alpha"])) == {"cancelled"})
    assert "cancelled" not in states(beta.member, sweep["beta"]) + states(alpha.member, sweep["other"])
    (entry,) = cancellations(alpha, before[0])
    assert entry["target"] == "3 jobs" and set(entry["detail"]["jobs"]) == set(sweep["alpha"])
    assert cancellations(beta, before[1]) == []
    for one, jobs in ((beta, sweep["beta"]), (alpha, sweep["other"])):
        with Client(platform_server.url, one.tokens["member"]) as own:
            assert own.cancel_jobs(all=True).cancelled >= len(jobs)
        until(lambda caller=one.member, ids=jobs: set(states(caller, ids)) == {"cancelled"})  # type: ignore[misc]


@pytest.mark.parametrize(("body", "error"), [
    ({}, InvalidSpec), ({"all": False}, InvalidSpec), ({"all": True, "state": "succeeded"}, InvalidSpec),
    ({"state": "nonsense"}, InvalidSpec), ({"state": "queued,ended"}, InvalidSpec), ({"unknown": 1}, InvalidSpec),
    ({"labels": {'a"b': "x"}}, InvalidSpec), ({"labels": {"a": 1}}, InvalidSpec),
    ({"all": True, "tenant": "sweep-beta"}, NotFound),
    ({"all": True, "tenant": "nobody"}, NotFound), ({"labels": {str(n): "x" for n in range(9)}}, InvalidSpec),
    ({"name": ""}, InvalidSpec), ({"name": "x" * 41}, InvalidSpec),
])  # fmt: skip
def test_what_names_no_jobs_or_another_s_is_refused(
    body: dict[str, Any], error: type[FairleadError], alpha: Team
) -> None:
    answer = alpha.member.post(CANCEL, json=body)
    assert (answer.status_code, answer.json()["code"]) == (error.status, error.code), answer.text
    assert answer.json()["fix"]


def test_who_only_looks_cancels_nothing(alpha: Team, platform_server: Served) -> None:
    with Client(platform_server.url, alpha.tokens["viewer"]) as viewer, pytest.raises(Forbidden):
        viewer.cancel_jobs(all=True)
