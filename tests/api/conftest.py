"""A real platform behind a real port, two tenants on it, and a caller for each role."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.waiting import until

ROLES = ("tenant-admin", "member", "viewer")
END_S = 60.0


@dataclass(frozen=True)
class Served:
    """Where the platform is, and its admin's token."""

    url: str
    tight_url: str  # the same platform through a door with tight limits
    token: str

    def caller(self, token: str | None, *, tight: bool = False) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.tight_url if tight else self.url, headers=headers, timeout=60.0)


@dataclass(frozen=True)
class Team:
    """A tenant, with a caller and a token per role."""

    name: str
    callers: dict[str, httpx.Client]
    tokens: dict[str, str]

    @property
    def member(self) -> httpx.Client:
        return self.callers["member"]

    @property
    def viewer(self) -> httpx.Client:
        return self.callers["viewer"]

    @property
    def admin(self) -> httpx.Client:
        return self.callers["tenant-admin"]


@contextmanager
def serving(prefix: str, *options: str) -> Iterator[Served]:
    """A platform in a process of its own, which must not have failed at anything when it ends."""
    from fairlead.agent.embedded.leftovers import sweep

    home = Path(tempfile.mkdtemp(prefix=prefix))
    home.chmod(0o755)  # the tenants' own users pass through it
    command = [sys.executable, str(Path(__file__).with_name("platform_process.py")), str(home), *options]
    with (home / "process.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output)
    try:
        told = _first_words(process, home / "process.log")
        served = Served(told["url"], told["tight"], told["token"])
        yield served
        log = (home / "process.log").read_text(errors="replace")
        assert "request failed" not in log, f"a failure of ours:\n{log[log.index('request failed') :][:4000]}"
        _ends_with_its_streams(served)
        assert process.wait(END_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        sweep(home)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def platform_server() -> Iterator[Served]:
    with serving("fairlead-api-") as served:
        yield served


def _ends_with_its_streams(served: Served) -> None:
    """Shutting down answers first, and then ends the streams that are open: their clients are not left hanging."""
    with served.caller(served.token) as admin, admin.stream("GET", "/api/v1/events/stream") as response:
        assert admin.post("/api/v1/shutdown").status_code == 202
        for _ in response.iter_lines():
            pass


def _first_words(process: subprocess.Popen[bytes], log: Path) -> dict[str, str]:
    told: dict[str, str] = {}
    assert process.stdout is not None
    while not {"url", "tight"} <= told.keys():
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"the platform did not start:\n{log.read_text()[-3000:]}")
        told |= json.loads(line)
    return told


@pytest.fixture(scope="session")
def admin(platform_server: Served) -> Iterator[httpx.Client]:
    with platform_server.caller(platform_server.token) as caller:
        yield caller


def team(server: Served, admin: httpx.Client, name: str) -> Team:
    made = admin.post("/api/v1/tenants", json={"name": name, "weight": 2})
    assert made.status_code == 201, made.text
    tokens = {"tenant-admin": made.json()["token"]["token"]}
    for role in ROLES[1:]:
        body = {"tenant": name, "role": role, "label": f"{role} of {name}"}
        tokens[role] = admin.post("/api/v1/tokens", json=body).json()["token"]
    return Team(name, {role: server.caller(token) for role, token in tokens.items()}, tokens)


@pytest.fixture(scope="session")
def alpha(platform_server: Served, admin: httpx.Client) -> Team:
    return team(platform_server, admin, "alpha")


@pytest.fixture(scope="session")
def beta(platform_server: Served, admin: httpx.Client) -> Team:
    return team(platform_server, admin, "beta")


ENDED = ("succeeded", "failed", "cancelled")


def run_to_its_end(caller: httpx.Client, spec: dict[str, Any]) -> dict[str, Any]:
    """Submit a job and wait until it has ended."""
    made = caller.post("/api/v1/jobs", json=spec)
    assert made.status_code == 201, made.text
    place = f"/api/v1/jobs/{made.json()['id']}"

    def ended() -> dict[str, Any] | None:
        view: dict[str, Any] = caller.get(place).json()
        return view if view["state"] in ENDED else None

    found: dict[str, Any] = until(ended, timeout_s=120.0)
    return found


def load_table(url: str, token: str, name: str, column: str = "age") -> None:
    """Have a tenant's own job load a small table as a data set."""
    from fairlead.sdk.client import Client

    with tempfile.TemporaryDirectory() as folder, Client(url, token) as client:
        table = Path(folder) / "table.csv"
        table.write_text(f"{column},rich\n" + "".join(f"{age},{age % 2}\n" for age in range(20, 60)))
        job = client.load_data(table, name, target="rich", workers=1)
        until(lambda: job.refresh().state in ENDED, timeout_s=180.0)
        assert job.state == "succeeded", job.view.message


@pytest.fixture(scope="session")
def finished(alpha: Team) -> dict[str, Any]:
    """A job of alpha that has printed something, left a file behind and ended."""
    script = 'echo "hello from alpha"; echo bye; printf 42 > "$FAIRLEAD_OUTPUT/answer.txt"'
    return run_to_its_end(alpha.member, {"name": "finished", "command": ["sh", "-c", script]})


@pytest.fixture(scope="session")
def waiting(alpha: Team) -> dict[str, Any]:
    """A job of alpha that has not ended: it sleeps, in a platform that is ended before it wakes."""
    made = alpha.member.post("/api/v1/jobs", json={"name": "waiting", "command": ["sleep", "86400"]})
    assert made.status_code == 201, made.text
    view: dict[str, Any] = made.json()
    return view
