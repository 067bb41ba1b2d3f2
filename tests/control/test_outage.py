"""A store that is away for a while: the control plane waits for it, gangs go on, and nothing that was said is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead import Client
from fairlead.errors import Unavailable
from tests.chaos.crashable import Crashable, kill, wait_until

from .postgres import PostgresServer

pytestmark = pytest.mark.timeout(400)  # each waits for a whole platform, a server and what they find out of each other

STEPS = 300  # longer than any outage here; hurried to its end, each takes what a gang's meeting takes


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Iterator[Crashable]:
    home = tmp_path_factory.mktemp("outage")
    crashable = Crashable(home, "2", store=postgres_server.new_store())
    try:
        crashable.up()
        crashable.client.create_tenant("alpha")
        yield crashable
    finally:
        crashable.down()


@pytest.fixture(autouse=True)
def _the_store_is_back(postgres_server: PostgresServer) -> Iterator[None]:
    yield
    postgres_server.start_if_stopped()


def health(platform: Crashable) -> dict[str, Any]:
    answer = httpx.get(f"{platform.client.url}/healthz", timeout=60.0)
    found: dict[str, Any] = answer.json()
    return found | {"code": answer.status_code}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_store_that_restarts_ends_nothing_and_loses_nothing(
    platform: Crashable, postgres_server: PostgresServer
) -> None:
    trains = platform.train("trains", workers="1", steps=STEPS, pause_s=0.4)
    script = "echo begin >> $FAIRLEAD_OUTPUT/runs; while [ ! -e $FAIRLEAD_OUTPUT/go ]; do sleep 0.05; done"
    ends = platform.client.submit(["sh", "-c", script], tenant="alpha", name="ends")
    waits = platform.client.submit(["true"], tenant="alpha", name="waits", workers="2", priority=-1)
    output = platform.home / "jobs" / ends.id / "output"
    wait_until(lambda: platform.view(trains.id).step > 3 and (output / "runs").exists(), 60, "both run")
    control, workers = platform.control_pid, platform.workers()
    before = platform.view(trains.id)

    postgres_server.stop()
    wait_until(lambda: health(platform)["status"] != "ok", 60, "it notices")
    seen = health(platform)
    assert (seen["status"], seen["code"], seen["leader"]) == ("store-unreachable", 503, True)
    assert "does not answer" in seen["detail"]
    with pytest.raises(Unavailable), Client(home=platform.home, timeout_s=5.0) as client:
        client.submit(["true"], tenant="alpha", name="refused")
    (output / "go").touch()
    wait_until(lambda: not platform.workers(ends.id), 60, "a job ends with nobody to write it down")
    assert platform.control_pid == control and platform.control_lives()
    assert platform.workers(trains.id).items() <= workers.items(), "the gang is the same"

    postgres_server.start()
    wait_until(lambda: health(platform)["status"] == "ok", 60, "it is well again")
    wait_until(lambda: platform.view(trains.id).step > before.step + 5, 60, "what was trained meanwhile is known")
    wait_until(lambda: platform.state(ends.id) == "succeeded", 60, "and what ended")
    assert lines(output / "runs") == 1, "it ran once"
    after = platform.view(trains.id)
    assert (after.generation, after.recoveries) == (before.generation, 0)
    assert platform.control_pid == control
    platform.hurry(trains.id)
    platform.wait_for_end(trains.id)
    platform.wait_for_end(waits.id)
    assert platform.state(waits.id) == platform.state(trains.id) == "succeeded"
    assert sorted(platform.losses(trains.id)) == list(range(1, STEPS + 1)), "no step is missing"


def test_a_worker_that_dies_while_the_store_is_away_is_replaced_when_it_is_back(
    platform: Crashable, postgres_server: PostgresServer
) -> None:
    job = platform.train("loses", workers="2", steps=STEPS, pause_s=0.5)
    wait_until(lambda: platform.view(job.id).step > 3, 60, "it trains")
    workers = platform.workers(job.id)
    postgres_server.stop()
    wait_until(lambda: health(platform)["status"] != "ok", 60, "it notices")
    kill(workers[sorted(workers)[-1]])
    postgres_server.start()
    wait_until(lambda: platform.view(job.id).recoveries == 1, 60, "the gang is mended")
    platform.hurry(job.id)
    platform.wait_for_end(job.id)
    assert platform.state(job.id) == "succeeded"
    assert sorted(platform.losses(job.id)) == list(range(1, STEPS + 1))


def test_a_platform_can_be_ended_while_its_store_is_away(platform: Crashable, postgres_server: PostgresServer) -> None:
    job = platform.train("stays", workers="1", steps=STEPS, pause_s=0.4)
    wait_until(lambda: platform.view(job.id).step > 3, 60, "it trains")
    postgres_server.stop()
    try:
        wait_until(lambda: health(platform)["status"] != "ok", 60, "it notices")
        platform.down()  # nobody can be asked to end it: the audit log cannot be written
        assert not platform.workers() and not platform.node_managers() and not platform.control_lives()
    finally:
        postgres_server.start()
    platform.up()
    wait_until(lambda: platform.view(job.id).step > 3, 60, "it is there")
    platform.hurry(job.id)
    platform.wait_for_end(job.id)
    assert platform.state(job.id) == "succeeded"
