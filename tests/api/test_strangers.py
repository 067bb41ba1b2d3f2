"""Two tenants on one full cluster: one makes room for the other, and neither ever reads the other's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

import httpx
import pytest
from fastapi import routing

from fairlead.api.app import create_app
from fairlead.control import service
from fairlead.scheduling.mentioned_jobs import ANOTHER_TENANTS_JOB
from tests.api.conftest import Team, serving, team
from tests.waiting import until

NAMES = ("crimson-x7", "azure-q3")
SLEEPS = ["sleep", "86400"]


@dataclass(frozen=True)
class Crowd:
    """Two tenants that met: by name of the tenant its callers, its jobs, and what it was told while one made room."""

    admin: httpx.Client
    teams: dict[str, Team]
    jobs: dict[str, list[str]]
    heard: dict[str, list[str]]
    victim: str

    def strange(self, tenant: str) -> list[str]:
        """What this tenant must never read."""
        (other,) = (name for name in self.teams if name != tenant)
        return [other, *self.jobs[other]]


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    with serving("fairlead-strangers-") as served, served.caller(served.token) as admin:
        teams = {name: team(served, admin, name) for name in NAMES}
        crimson, azure = teams.values()
        free = sum(node["devices"] for node in admin.get("/api/v1/nodes").json())
        jobs = {crimson.name: [_submit(crimson, f"carmine-{number}") for number in range(free)]}
        until(lambda: len(_running(crimson)) == free, timeout_s=120.0)
        jobs[azure.name] = [_submit(azure, "cobalt", sla={"class": "gold"}), _submit(azure, "indigo")]
        heard: dict[str, list[str]] = {name: [] for name in NAMES}

        def made_room() -> bool:
            for name, caller in teams.items():
                heard[name] += [caller.viewer.get(f"/api/v1/jobs/{job}/why").text for job in jobs[name]]
                heard[name] += [_dry_run(caller), caller.viewer.get("/api/v1/jobs").text]
            return bool(_running(azure))

        until(made_room, timeout_s=120.0)
        (victim,) = set(jobs[crimson.name]) - _running(crimson)
        yield Crowd(admin, teams, jobs, heard, victim)


def _submit(team: Team, name: str, **more: Any) -> str:
    made = team.member.post("/api/v1/jobs", json={"name": name, "command": SLEEPS, "labels": {"of": team.name}, **more})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def _dry_run(team: Team) -> str:
    return team.member.post("/api/v1/jobs/dry-run", json={"name": "maybe", "command": SLEEPS}).text


def _running(team: Team) -> set[str]:
    return {job["id"] for job in team.viewer.get("/api/v1/jobs").json()["items"] if job["state"] == "running"}


def _places(tenant: str, jobs: list[str]) -> Iterator[str]:
    """Every address that can be read, with this tenant's own things in it."""
    app = create_app(cast(service.Platform, None))
    for route in routing.iter_route_contexts(app.routes):
        path = str(route.path or "").replace(":path}", "}")
        if "GET" not in (route.methods or ()) or "openapi" in path:
            continue
        path = path.replace("/tenants/{name}", f"/tenants/{tenant}").replace("{pipeline}", "flow")
        path = path.replace("/datasets/{name}", "/datasets/bank").replace("/artifacts/{name}", "/artifacts/answer.txt")
        assert "{" not in path.replace("{job}", ""), f"{path}: say what stands for the rest"
        yield from (path.replace("{job}", job) for job in (jobs if "{job}" in path else jobs[:1]))


def _read(caller: httpx.Client, place: str) -> str:
    """The answer's whole text; of a stream all that comes before its first silence."""
    params = {"beats": "true"} if place.endswith("/stream") else {"limit": "1000"} if "/events" in place else {}
    with caller.stream("GET", place, params=params) as response:
        assert response.status_code < 500
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            return response.read().decode()
        return "\n".join(takewhile(lambda line: not line.startswith(":"), response.iter_lines()))


@pytest.mark.parametrize("tenant", NAMES)
def test_no_address_tells_a_tenant_another_s_names(crowd: Crowd, tenant: str) -> None:
    places = list(_places(tenant, crowd.jobs[tenant]))
    assert len(places) > 20
    for role, caller in crowd.teams[tenant].callers.items():
        for place in places:
            text = _read(caller, place)
            assert not [name for name in crowd.strange(tenant) if name in text], (role, place, text[:2000])


@pytest.mark.parametrize("tenant", NAMES)
def test_neither_was_told_another_s_names_while_one_made_room(crowd: Crowd, tenant: str) -> None:
    text = "\n".join(crowd.heard[tenant])
    assert not [name for name in crowd.strange(tenant) if name in text], text[:2000]


def test_who_was_stopped_reads_that_it_was_for_another_tenant(crowd: Crowd) -> None:
    crimson = crowd.teams["crimson-x7"]
    why = crimson.viewer.get(f"/api/v1/jobs/{crowd.victim}/why").json()["reason"]["text"]
    assert "gives 1 device to a waiting job of another tenant, which would miss its promise without them" in why
    told = [event["text"] for event in crimson.viewer.get("/api/v1/events", params={"job": crowd.victim}).json()]
    assert any("a waiting job of another tenant" in text for text in told)


def test_an_admin_reads_who_made_room_for_whom(crowd: Crowd) -> None:
    receiver = crowd.jobs["azure-q3"][0]
    why: dict[str, Any] = crowd.admin.get(f"/api/v1/jobs/{crowd.victim}/why").json()
    assert f"waiting job {receiver} of tenant azure-q3" in why["reason"]["text"]
    assert crowd.admin.get("/api/v1/events", params={"job": crowd.victim}).text.count(receiver) == 1


def test_who_waits_reads_how_room_is_made_but_not_by_whom(crowd: Crowd) -> None:
    making = [text for text in crowd.heard["azure-q3"] if "room is being made by" in text]
    assert all(f"room is being made by {ANOTHER_TENANTS_JOB}" in text for text in making)
