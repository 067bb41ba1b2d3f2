"""What workers said before they ended, while nobody led, is known before their end is judged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import wire
from fairlead.agent.protocol import NodeJoined, NodeLost
from fairlead.control.reconcile import node_registry
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.node_registry import CATCH_UP_S, NodeRegistry, adopted_worker
from fairlead.control.records import Job, JobPhase
from tests.control.puppets import Hurried, Platform, quick_loop
from tests.control.stores import Clock, Opened, a_job, run
from tests.control.test_node_registry import Engine
from tests.control.test_worker_deaths import generations_of, patient, running, seen, there


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(node_registry, "CATCH_UP_S", 1e6)
    with quick_loop(monkeypatch):
        yield


@pytest.fixture
def url(new_sqlite: Path, tmp_path: Path) -> str:
    shutil.copy(new_sqlite, tmp_path / "fairlead.db")
    return f"sqlite:///{tmp_path}/fairlead.db"


def a_command(clock: Hurried, workers: int) -> Job:
    gang = {"min_workers": workers, "max_workers": workers, "elastic": False}
    return a_job("command", submitted_s=clock(), training=False, **gang)


async def led_before(db: Opened, clock: Hurried, job: Job) -> tuple[Platform, dict[str, str]]:
    """The next platform, before it begins, and the nodes of the job's workers, which run."""
    async with Platform(db.store, clock) as platform:
        await platform.submit(job, patient(clock))
        await seen(platform, job.id, running)
        return Platform(db.store, clock), platform.backend.where(job.id)


async def passes(platform: Platform) -> None:
    """All nodes have joined, and the loop has looked at all gangs since."""
    await there(platform, lambda: len(platform.controller.node_registry.joined) == 3)
    for _ in range(5):
        await platform.controller.wait_for_news(0.05)


def test_a_command_that_finished_while_nobody_led_is_not_run_again(db: Opened) -> None:
    """Its node tells that it is gone, and a while later what it said before."""

    async def play() -> None:
        clock = Hurried()
        job = a_command(clock, 1)
        platform, where = await led_before(db, clock, job)
        platform.backend.adopt(wire.WorkerStatus(job.id, "w0", 0, 1, "gone"), where["w0"], pending=2)
        async with platform:
            await passes(platform)
            platform.backend.say(job.id, "w0", wire.Finished(1, 0))
            platform.backend.say(job.id, "w0", wire.Exited(0))
            (ended,) = await platform.ended(job.id)
            assert (ended.phase, await generations_of(platform, job.id)) == (JobPhase.SUCCEEDED, 1)

    run(play())


def test_a_rank_that_a_former_leader_saw_finish_has_finished_for_the_next_one(db: Opened) -> None:
    async def play() -> None:
        clock = Hurried()
        job = a_command(clock, 2)
        platform, where = await led_before(db, clock, job)
        ended_s = clock()
        platform.backend.adopt(wire.WorkerStatus(job.id, "w0", 0, 1, "gone", finished_ago_s=9.0), where["w0"])
        platform.backend.adopt(wire.WorkerStatus(job.id, "w1", 1, 1, "joined"), where["w1"])
        async with platform:
            await passes(platform)
            platform.backend.say(job.id, "w1", wire.Finished(1, 0))
            platform.backend.say(job.id, "w1", wire.Exited(0))
            (ended,) = await platform.ended(job.id)
            assert (ended.phase, await generations_of(platform, job.id)) == (JobPhase.SUCCEEDED, 1)
            assert ended.finished_s is not None and ended.finished_s >= ended_s

    run(play())


class Releases(Engine):
    """A backend whose workers, which no stored job needs, are ended."""

    async def release(self, job: str, workers: dict[str, str], *, forget_memory: bool = False) -> None: ...


def test_gangs_wait_for_the_last_words_of_a_node_and_not_for_ever(db: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_registry, "CATCH_UP_S", CATCH_UP_S)
    clock = Clock()
    engine: Any = Releases()
    found = NodeRegistry(db.store, engine, GangRegistry({}, {}, {}), clock)
    gone = wire.WorkerStatus("job", "w0", 0, 1, "gone")
    run(found.apply_change(NodeJoined("node-0", "one", [gone], 7)))
    run(found.apply_change(NodeJoined("node-1", "one", [wire.WorkerStatus("job", "w1", 0, 1, "joined")], 7)))
    assert found.uncertain == {"node-0"}, "nothing is concluded from workers that live"
    assert not found.events_taken_in("node-0", "one", 6) and not found.events_taken_in("node-0", "another", 7)
    assert found.uncertain == {"node-0"}
    assert found.events_taken_in("node-0", "one", 7) and not found.events_taken_in("node-0", "one", 8), (
        "it says so once"
    )
    assert not found.uncertain
    run(found.apply_change(NodeJoined("node-0", "one", [gone], 7)))
    clock.now_s += CATCH_UP_S
    assert not found.uncertain, "what it does not tell for so long it will not tell"
    clock.now_s -= CATCH_UP_S
    run(found.apply_change(NodeLost("node-0", "one", "gone")))
    assert not found.uncertain and not found.events_taken_in("node-0", "one", 7)


def test_a_worker_is_adopted_with_what_its_node_knows_of_its_end() -> None:
    lives = adopted_worker("node-0", wire.WorkerStatus("job", "w0", 1, 3, "joined"), 50.0)
    assert (lives.phase, lives.generation, lives.device, lives.alive) == ("joined", 3, 1, True)
    ended = adopted_worker("node-0", wire.WorkerStatus("job", "w0", 1, 3, "gone"), 50.0)
    assert (ended.phase, ended.lost, ended.cause, ended.finished_s) == ("left", True, "unknown", None)
    finished = adopted_worker("node-0", wire.WorkerStatus("job", "w0", 1, 3, "gone", finished_ago_s=4.0), 50.0)
    assert (finished.phase, finished.lost, finished.alive, finished.finished_s) == ("finished", False, False, 46.0)
    lingers = adopted_worker("node-0", wire.WorkerStatus("job", "w0", 1, 3, "finished", finished_ago_s=4.0), 50.0)
    assert (lingers.phase, lingers.alive, lingers.finished_s) == ("finished", True, 46.0)
