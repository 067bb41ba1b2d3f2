"""Promises: whether a deadline can be kept is said as a job is handed in, and who wants to be refused is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.api.conftest import Team

NEVER = {"name": "late", "command": ["true"], "takes": "1h", "sla": {"deadline": "10m"}}
IN_TIME = {"name": "early", "command": ["true"], "takes": "1m", "sla": {"deadline": "10h"}}


@pytest.fixture
def tidy(alpha: Team) -> Iterator[list[str]]:
    """Jobs put into it are cancelled in the end."""
    made: list[str] = []
    yield made
    for job in made:
        alpha.member.post(f"/api/v1/jobs/{job}/cancel")


def test_a_deadline_that_cannot_be_kept_is_said_so_and_the_job_is_taken(alpha: Team, tidy: list[str]) -> None:
    answer = alpha.member.post("/api/v1/jobs", json=NEVER)
    assert answer.status_code == 201
    job = answer.json()
    tidy.append(job["id"])
    promise = job["promise"]
    assert promise["kept"] is False
    assert promise["earliest_deadline_s"] > time.time() + 3_000
    assert "cannot be kept" in promise["reason"]["text"]
    told = alpha.viewer.get("/api/v1/events", params={"job": job["id"], "limit": 100}).json()
    assert "promise-in-doubt" in {event["kind"] for event in told}


def test_a_strict_one_is_refused_with_what_could_be_promised_and_stored_if_it_can_be(
    alpha: Team, tidy: list[str]
) -> None:
    strict = NEVER | {"sla": {"deadline": "10m", "strict": True}}
    refused = alpha.member.post("/api/v1/jobs", json=strict)
    assert refused.status_code == 409
    assert "UTC or later, or leave out sla.strict" in refused.json()["fix"]
    rehearsed = alpha.viewer.post("/api/v1/jobs/dry-run", json=strict).json()
    assert rehearsed["admitted"] is False
    kept = alpha.member.post("/api/v1/jobs", json=IN_TIME | {"sla": {"deadline": "10h", "strict": True}})
    assert kept.status_code == 201
    tidy.append(kept.json()["id"])
    assert kept.json()["promise"]["kept"] is True


def test_a_dry_run_tells_start_finish_place_and_promise(alpha: Team) -> None:
    told = alpha.viewer.post("/api/v1/jobs/dry-run", json=IN_TIME).json()
    assert told["admitted"] is True
    assert told["expected_finish_s"] - told["expected_start_s"] == pytest.approx(62.0, abs=10.0)
    assert len(told["nodes"]) == 1
    assert told["promise"]["kept"] is True
    assert told["promise"]["gang"] == 1


def test_why_tells_what_kind_of_work_a_job_is(alpha: Team, tidy: list[str]) -> None:
    spec = {"name": "kind", "command": ["sleep", "600"], "workload": "batch", "resources": {"memory": "64MB"}}
    tidy.append(alpha.member.post("/api/v1/jobs", json=spec).json()["id"])
    told = alpha.viewer.get(f"/api/v1/jobs/{tidy[0]}/why").json()["profile"]
    assert (told["purpose"], told["bound"]) == ("batch", "compute")
    assert told["memory"] < 1.0


def test_without_a_length_the_promise_is_open(alpha: Team) -> None:
    unknown = {name: value for name, value in NEVER.items() if name != "takes"} | {"name": "nobody-knows"}
    told = alpha.viewer.post("/api/v1/jobs/dry-run", json=unknown).json()
    assert told["promise"]["kept"] is None
    assert told["expected_finish_s"] is None
    assert "takes" in told["promise"]["reason"]["text"]
