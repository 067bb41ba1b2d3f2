"""What a page needs beyond the rest: beats, jobs by their ids, who sits on which device, and shares over time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from tests.api.conftest import Team
from tests.waiting import until

PATIENCE_S = 90.0


def frames(response: httpx.Response) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """Kind, id and data of each event."""
    kind, id = "", None
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            id = value
        elif name == "data":
            yield kind, id, json.loads(value)
            kind, id = "", None


def beats(team: Team) -> Iterator[dict[str, Any]]:
    """What the stream tells every second or so; whoever waits in vain for something in it is told so."""
    begun_s = time.monotonic()
    with team.viewer.stream("GET", "/api/v1/events/stream", params={"after": -1, "beats": "true"}) as response:
        for kind, id, data in frames(response):
            if kind == "beat":
                assert id is None  # a client that comes back asks for events after the last event
                yield data
            assert time.monotonic() - begun_s < PATIENCE_S, f"not within {PATIENCE_S:g} s of beats, the last: {data}"


def test_a_beat_tells_of_nodes_and_one_s_own_jobs_and_then_only_what_changed(
    alpha: Team, beta: Team, waiting: dict[str, Any]
) -> None:
    until(lambda: alpha.viewer.get(f"/api/v1/jobs/{waiting['id']}").json()["state"] == "running")
    listening = beats(alpha)
    first = next(listening)
    assert first["jobs"][waiting["id"]]["state"] == "running" and first["jobs"][waiting["id"]]["workers"] == 1
    assert set(first["nodes"]) == {"node-0", "node-1"} and first["nodes"]["node-0"]["state"] == "ready"
    for _ in range(2):
        later = next(listening)
        assert "state" not in later["jobs"].get(waiting["id"], {}) and "state" not in later["nodes"].get("node-0", {})
    listening.close()
    theirs = beats(beta)
    assert waiting["id"] not in str(next(theirs))  # neither as a job nor on a device
    theirs.close()


def test_a_job_that_ends_is_told_of_as_gone(alpha: Team) -> None:
    made = alpha.member.post("/api/v1/jobs", json={"name": "brief", "command": ["sleep", "86400"]}).json()["id"]
    seen = False
    try:
        for beat in beats(alpha):
            if not seen and made in beat["jobs"]:
                seen = alpha.member.post(f"/api/v1/jobs/{made}/cancel").is_success
            if made in beat["gone"]:
                break
    finally:
        alpha.member.post(f"/api/v1/jobs/{made}/cancel")  # whatever happened: others want its device
    assert seen


def test_devices_in_use_are_shown_and_whose_they_are_only_to_their_tenant(
    alpha: Team, beta: Team, admin: httpx.Client, waiting: dict[str, Any]
) -> None:
    until(lambda: alpha.viewer.get(f"/api/v1/jobs/{waiting['id']}").json()["state"] == "running")

    def slots(caller: httpx.Client) -> list[dict[str, Any]]:
        return [slot for node in caller.get("/api/v1/nodes").json() for slot in node["slots"]]

    for caller in (alpha.viewer, admin):
        (mine,) = [slot for slot in slots(caller) if slot["job"] == waiting["id"]]
        assert mine["tenant"] == "alpha" and mine["worker"] and mine["device"] == 0
    assert len(slots(beta.viewer)) >= 1 and waiting["id"] not in str(slots(beta.viewer))
    assert "alpha" not in str(slots(beta.viewer))


def test_jobs_are_listed_by_their_ids_within_one_s_own(
    alpha: Team, beta: Team, finished: dict[str, Any], waiting: dict[str, Any]
) -> None:
    query = {"ids": f"{finished['id']},{waiting['id']},nobody-abcdef"}
    found = alpha.viewer.get("/api/v1/jobs", params=query).json()
    assert {job["id"] for job in found["items"]} == {finished["id"], waiting["id"]} and found["total"] == 2
    assert beta.viewer.get("/api/v1/jobs", params=query).json()["items"] == []


def test_shares_over_time_show_a_tenant_its_own(alpha: Team, beta: Team, admin: httpx.Client, finished: Any) -> None:
    whole = admin.get("/api/v1/shares", params={"window_s": 600, "points": 20}).json()
    assert {line["tenant"] for line in whole["tenants"]} >= {"alpha", "beta"} and whole["devices"] == 2
    assert all(len(line["held"]) == len(line["entitlement"]) == 20 for line in whole["tenants"])
    (own,) = alpha.viewer.get("/api/v1/shares").json()["tenants"]
    assert own["tenant"] == "alpha" and sum(own["held"]) > 0 and max(own["entitlement"]) > 0
    for wrong in ({"window_s": 1}, {"points": 1}, {"window_s": "nan"}, {"other": 1}):
        assert beta.viewer.get("/api/v1/shares", params=wrong).status_code == 422
