"""The logs of a busy platform: every line an object, requests and jobs told apart, and no secret anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.conftest import run_to_its_end
from tests.outside.conftest import Busy, fairlead
from tests.waiting import until

SECRET = "s3cr3t-Value-That-Nobody-May-Read"


@pytest.fixture(scope="module")
def secrets(busy: Busy) -> list[str]:
    """Everything that opens something, on a platform that was used, misused and asked wrongly with it."""
    with busy.caller() as admin:
        made = admin.post("/api/v1/tenants", json={"name": "noisy"}).json()["token"]["token"]
        tokens = [busy.token, made]
        for role in ("member", "viewer"):
            tokens.append(admin.post("/api/v1/tokens", json={"tenant": "noisy", "role": role}).json()["token"])
        admin.put("/api/v1/secrets/NOISY_KEY", params={"tenant": "noisy"}, json={"value": SECRET}).raise_for_status()
        revoked = admin.post("/api/v1/tokens", json={"tenant": "noisy", "role": "viewer"}).json()
        admin.delete(f"/api/v1/tokens/{revoked['id']}")
        tokens.append(revoked["token"])
    for token in tokens:
        _misuse(busy, token)
    with busy.caller(made) as tenant:
        job = {"name": "noisy", "secrets": ["NOISY_KEY"], "env": {"MINE": "private-variable"}}
        run_to_its_end(tenant, job | {"command": ["sh", "-c", 'echo "$NOISY_KEY"; exit 3']})
        run_to_its_end(tenant, job | {"command": ["sh", "-c", f'test "$NOISY_KEY" = {SECRET[:5]}x || kill -9 $$']})
        session = tenant.post("/api/v1/session", json={"token": made})
        cookies = list(session.cookies.values())
        tenant.get("/api/v1/session")
    fairlead(busy.home, "whoami")
    fairlead(busy.home, "nodes")
    secrets = [*(token.rpartition("_")[2] for token in tokens), *cookies, SECRET, "private-variable"]
    assert len(secrets) >= 8 and all(len(secret) >= 16 for secret in secrets)
    until(lambda: '"job-failed"' in busy.logs())
    return secrets


def _misuse(busy: Busy, token: str) -> None:
    """Put the token where it does not belong."""
    with busy.caller(token) as caller:
        caller.get("/api/v1/whoami")
        caller.get(f"/api/v1/jobs/{token}")
        caller.get("/api/v1/jobs", params={"name": token, "token": token})
        caller.get(f"/{token}", headers={"Cookie": f"fairlead={token}"})
        caller.post("/api/v1/jobs", json={"name": token, "command": [token], "env": {"T": token}, "workers": token})
        caller.post("/api/v1/jobs", content=f'{{"token": "{token}"'.encode())
        caller.post("/api/v1/session", json={"token": token + "x"})
        caller.get("/api/v1/whoami", headers={"X-Request-Id": token})
        caller.get("/api/v1/whoami", headers={"Authorization": f"Basic {token}"})


def test_no_token_and_no_secret_is_in_any_log_of_a_busy_platform(busy: Busy, secrets: list[str]) -> None:
    written = busy.logs()
    assert len(written.splitlines()) > 50
    assert not [secret for secret in secrets if secret in written]


def test_nor_in_what_the_api_tells_an_admin(busy: Busy, secrets: list[str]) -> None:
    with busy.caller() as admin:
        places = ("/metrics", "/api/v1/events?limit=1000", "/api/v1/audit?limit=1000", "/api/v1/tokens",
                  "/api/v1/secrets?tenant=noisy", "/api/v1/report", "/api/v1/nodes", "/healthz")  # fmt: skip
        told = "".join(admin.get(place).text for place in places)
    hidden = [secret for secret in secrets if secret != "private-variable"]
    assert not [secret for secret in hidden if secret in told]


def _lines(busy: Busy, name: str = "control.log") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (busy.home / "logs" / name).read_text().splitlines()]


def test_every_line_of_the_platform_s_processes_is_an_object_that_says_who_and_when(
    busy: Busy, secrets: list[str]
) -> None:
    for name in ("control.log", "host.log", "node-0.log", "node-1.log"):
        for line in _lines(busy, name):
            assert {"time", "level", "message", "process"} <= line.keys(), line
    assert {line["process"] for line in _lines(busy)} == {"control"}
    assert all(line["epoch"] == 1 for line in _lines(busy) if "job" in line or "request_id" in line)
    assert all(line["node"] == "node-0" for line in _lines(busy, "node-0.log"))


def test_a_job_s_way_can_be_read_from_the_log_alone(busy: Busy, secrets: list[str]) -> None:
    lines = [line for line in _lines(busy) if line.get("job", "").startswith("noisy-")]
    job = lines[0]["job"]
    own = [line for line in lines if line["job"] == job and line.get("logger") == "fairlead.events"]
    kinds = [line["message"] for line in own]
    order = ["job-submitted", "job-starting", "job-failing", "job-failed"]
    assert [kind for kind in kinds if kind in order] == order
    assert {line["tenant"] for line in own} == {"noisy"}
    assert next(line for line in own if line["message"] == "job-starting")["generation"] == 1
    carried_out = [line for line in lines if line["message"] == "carry out"]
    assert carried_out and all(line["tenant"] == "noisy" and "generation" in line for line in carried_out)


def test_a_request_is_found_by_its_id(busy: Busy) -> None:
    with busy.caller() as admin:
        answered = admin.post("/api/v1/tenants", json={"name": "no good"}, headers={"X-Request-Id": "find-me-7"})
        assert answered.json()["request_id"] == "find-me-7"
    (line,) = until(lambda: [line for line in _lines(busy) if line.get("request_id") == "find-me-7"])
    assert (line["method"], line["route"], line["status"]) == ("POST", "/api/v1/tenants", 422)
    assert line["actor"] == busy.token.split("_")[1] and line["took_ms"] > 0
