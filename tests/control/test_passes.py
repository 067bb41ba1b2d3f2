"""A pass of the loop touches what has changed, in bounded memory whatever workers and nodes say."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from fairlead import wire
from fairlead.agent.protocol import NodeJoined, NodeLost
from fairlead.control.reconcile.gang_executor import GangExecutor
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import GangView, TellLeave, WorkerFact
from fairlead.control.reconcile.inbox import MAX_PER_WORKER
from fairlead.control.reconcile.node_incarnations import KEEP_CURSOR_S, EndedIncarnations
from fairlead.control.records import Job, JobPhase
from fairlead.control.store import jobs, nodes
from tests.control import made
from tests.control.puppets import Body, Hurried, Platform, PuppetBackend, quick_loop
from tests.control.stores import Clock, Opened, a_job, run

WITHIN_S = 30.0
GANGS = 6


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with quick_loop(monkeypatch):
        yield


@pytest.fixture
def url(new_sqlite: Path, tmp_path: Path) -> str:
    shutil.copy(new_sqlite, tmp_path / "fairlead.db")
    return f"sqlite:///{tmp_path}/fairlead.db"


def waits(clock: Hurried, name: str, **fields: Any) -> Job:
    return a_job(name, **({"submitted_s": clock(), "max_workers": 1} | fields))


def trains_on(told: wire.ToWorker | None) -> Sequence[Body]:
    """Joins and says nothing more until it is ended."""
    match told:
        case None:
            return [wire.Ready(samples=10**6, epochs=1, batch_size=10, parameters=10)]
        case wire.Join(generation=number):
            return [wire.Joined(number, 0)]
        case wire.Leave(generation=number):
            return [wire.Left(number, 0)]
        case _:
            return [wire.Exited(0)]


async def until(platform: Platform, holds: Any, what: str) -> None:
    """Wait until the stored jobs are as wanted; the leader must live on."""
    until_s = time.monotonic() + WITHIN_S
    while not holds(await platform.store.read(jobs.active)):
        platform.lives()
        assert time.monotonic() < until_s, what
        await platform.controller.wait_for_news(0.05)


def test_progress_of_gangs_makes_nobody_look_at_them(db: Opened) -> None:
    """Before, each pass read every gang on its way."""
    clock = Hurried()

    async def scene() -> tuple[int, int]:
        read: list[str] = []

        def note(_conn: object, _cursor: object, statement: str, *_: object) -> None:
            if "FROM generations" in statement:
                read.append(statement)

        async with Platform(db.store, clock) as platform:
            names = [await platform.submit(waits(clock, f"gang-{number}"), trains_on) for number in range(GANGS)]
            everywhere = {JobPhase.RUNNING}
            await until(platform, lambda found: {job.phase for job in found} == everywhere, "all run")
            event.listen(db.store._engines.reader, "before_cursor_execute", note)
            for step in range(1, 31):
                for name in names:
                    rows = [{"step": float(step), "time_s": clock(), "loss": 1.0}]
                    platform.backend.say(name, "w0", wire.Progress(1, step, 10**5, steps=rows))
                await until(platform, lambda found, step=step: all(job.step == step for job in found), f"step {step}")
            assert 0.0 < platform.controller._storing_s < 600.0, "events wait no longer than storing them takes"
            return len(read), platform.controller.publish_count

    read, passes = run(scene())
    assert read < passes * GANGS / 2, f"{read} reads of generations in {passes} passes over {GANGS} gangs"


def test_a_worker_that_floods_the_inbox_fails_its_own_job_and_the_others_end_well(db: Opened) -> None:
    clock = Hurried()
    flood = [wire.Ready(batch_size=10) for _ in range(20 * MAX_PER_WORKER)]

    def floods(told: wire.ToWorker | None) -> Sequence[Body]:
        return [*flood, *trains_on(told)] if isinstance(told, wire.Join) else trains_on(told)

    async def scene() -> list[Job]:
        async with Platform(db.store, clock) as platform:
            loud = await platform.submit(waits(clock, "loud"), floods)
            quiet = await platform.submit(waits(clock, "quiet"))
            found = await platform.ended(loud, quiet)
            assert len(platform.controller._inbox) == 0
            return found

    loud, quiet = run(scene())
    assert quiet.phase is JobPhase.SUCCEEDED
    assert loud.phase is JobPhase.FAILED and "at once, which no honest worker does" in str(loud.message)


def test_a_job_that_cools_is_decided_about_when_it_has_cooled_and_is_forgotten_then(db: Opened) -> None:
    clock = Hurried()

    async def scene() -> Job:
        async with Platform(db.store, clock) as platform:
            job = waits(clock, "cools")
            platform.controller.gang_registry.cooling_until_s[job.id] = clock() + 5.0
            await platform.submit(job)
            (found,) = await platform.ended(job.id)
            assert platform.controller.gang_registry.cooling_until_s == {}
            return found

    assert run(scene()).phase is JobPhase.SUCCEEDED


def test_what_the_leader_knows_of_jobs_goes_with_them(db: Opened) -> None:
    clock = Hurried()

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            names = [await platform.submit(waits(clock, f"short-{number}")) for number in range(2 * GANGS)]
            await platform.ended(*names)
            controller = platform.controller
            until_s = time.monotonic() + WITHIN_S
            while controller.gang_registry.workers or controller._gang_tasks.busy:
                assert time.monotonic() < until_s, controller.gang_registry.workers
                await controller.wait_for_news(0.05)
            known = controller.gang_registry
            assert (known.commands_sent, known.cooling_until_s, len(controller.quarantine)) == ({}, {}, 0)
            assert known.cpu._used == {} and known.measured_usage._workers == {}

    run(scene())


def test_what_nodes_tell_of_jobs_that_are_gone_is_not_kept() -> None:
    """A node tells its use once a second, so often of workers whose job has just ended."""
    known = GangRegistry({}, {}, {})
    known.workers_of("lives")
    for number in range(1000):
        used = [wire.WorkerUsage(job, "w0", 5.0, 1 << 20) for job in ("lives", f"gone-{number}")]
        known.observe(wire.Telemetry(0.5, 0, used))
    assert (
        list(known.cpu._used) == list(known.measured_usage._workers) == list(known.measured_usage._memory) == ["lives"]
    )
    known.forget("lives")
    assert not (
        known.cpu._used
        or known.cpu._metered
        or known.measured_usage._workers
        or known.measured_usage._memory
        or known.workers
    )


def test_a_gang_that_changes_its_size_for_ever_is_remembered_by_what_it_was_told_last(db: Opened) -> None:
    known = GangRegistry({"mlp-abc234": {"w0": WorkerFact("node-0", "joined", 1)}}, {}, {})
    carry_out = GangExecutor(db.store, PuppetBackend(Clock()), known, made.worker_order, dict, Clock())  # type: ignore[arg-type]
    for number in range(1, 200):
        job, generation = made.job(generation=number), made.generation(("w0", "node-0"), number=number)
        view = GangView(job, [generation], known.workers_of(job.id), frozenset(), 0.0, frozenset())
        run(carry_out.execute(TellLeave(generation, (), snapshot=False), view))
    assert known.commands_sent["mlp-abc234"] == {"leave:197", "leave:198", "leave:199"}


# ------------------------------------------------------------ cursors


def test_cursors_of_incarnations_go_when_they_are_gone_for_long(db: Opened) -> None:
    clock = Clock()
    for node, incarnation in (("node-0", "old"), ("node-0", "now"), ("node-1", "now"), ("taken-away", "last")):
        db.write(nodes.advance_cursor, node, incarnation, 7)
    seen = db.read(nodes.cursors)
    gone = EndedIncarnations(db.store, seen, clock)
    present = ["node-0", "node-1"]
    gone.node_changed(NodeJoined("node-0", "now", []), present)
    gone.node_changed(NodeJoined("node-1", "now", []), present)
    clock.advance(KEEP_CURSOR_S - 1.0)
    run(gone.forget())
    assert len(seen) == 4, "a message of it may still be on its way"
    clock.advance(1.0)
    run(gone.forget())
    assert seen == db.read(nodes.cursors) == {("node-0", "now"): 7, ("node-1", "now"): 7}


def test_the_cursor_of_an_incarnation_that_comes_back_in_time_stays(db: Opened) -> None:
    clock = Clock()
    db.write(nodes.advance_cursor, "node-0", "now", 7)
    seen = db.read(nodes.cursors)
    gone = EndedIncarnations(db.store, seen, clock)
    gone.node_changed(NodeLost("node-0", "now", "silent"), ["node-0"])
    clock.advance(KEEP_CURSOR_S / 2)
    gone.node_changed(NodeJoined("node-0", "now", []), ["node-0"])
    clock.advance(KEEP_CURSOR_S)
    run(gone.forget())
    assert seen == {("node-0", "now"): 7}


def test_a_node_that_comes_again_and_again_leaves_as_many_cursors_as_an_hour_has(db: Opened) -> None:
    clock = Clock()
    seen: dict[tuple[str, str], int] = {}
    gone = EndedIncarnations(db.store, seen, clock)
    for number in range(300):
        seen["node-0", f"i{number}"] = 1
        db.write(nodes.advance_cursor, "node-0", f"i{number}", 1)
        gone.node_changed(NodeJoined("node-0", f"i{number}", []), ["node-0"])
        clock.advance(60.0)
        run(gone.forget())
    assert len(seen) <= KEEP_CURSOR_S / 60.0 + 1
    assert len(db.read(nodes.cursors)) == len(seen)
