"""Reports of progress are stored many at a time, each job apart from the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, event
from structlog.testing import capture_logs

from fairlead import wire
from fairlead.agent.protocol import WorkerEvent
from fairlead.control.reconcile.worker_events import BatchOutcome, needs_no_store, store_events
from fairlead.control.records import JobPhase
from fairlead.control.store import events, generations, jobs, metrics, nodes
from tests.control import made
from tests.control.stores import Clock, Opened

NAMES = [f"job-{number:03}" for number in range(40)]


def standing(db: Opened, clock: Clock, names: Sequence[str] = NAMES) -> None:
    """Trainings that run, each of which has made steps before."""

    def work(connection: Connection) -> None:
        for name in names:
            job = made.job(id=name, submitted_s=clock() - 100.0, generation=1, batch_size=10, step=5)
            jobs.insert(connection, job, {"name": name}, {}, None, "d")
            generations.insert(connection, made.generation(
                ("w0", "node-0"), ("w1", "node-1"), job=name, created_s=clock() - 60.0, running_s=clock() - 50.0,
                first_step=1,
            ))  # fmt: skip

    db.write(work)


def told(clock: Clock, names: Sequence[str] = NAMES, first: int = 1) -> list[WorkerEvent]:
    """Of each job two reports of its leader, a sign of life of the other worker, and a snapshot."""
    found = []
    for name in names:
        for step, loss in ((10, 0.5), (12, math.nan)):
            rows = [{"step": float(step), "time_s": clock() - 1.0, "loss": loss}]
            found.append((name, "w0", wire.Progress(1, step, 100, 2, 50.0, steps=rows)))
        found.append((name, "w1", wire.Progress(1, 12, 100)))
        found.append((name, "w0", wire.Snapshot(1, 11, "memory", 100, 0.1)))
    return [WorkerEvent("node-0", "i1", first + place, clock(), *one) for place, one in enumerate(found)]


def taken(db: Opened, batch: Sequence[WorkerEvent], clock: Clock) -> BatchOutcome:
    return db.write(lambda connection: store_events(connection, batch, clock()))


def rows(db: Opened, names: Sequence[str] = NAMES) -> list[Any]:
    found = [(db.read(jobs.get, name), db.read(metrics.history, name)) for name in names]
    return [(replace(job, id=""), steps) for job, steps in found if job is not None]


def test_reports_stored_together_say_the_same_as_reports_stored_one_by_one(db: Opened, clock: Clock) -> None:
    together, alone = NAMES[:3], NAMES[3:6]
    standing(db, clock, NAMES[:6])
    assert taken(db, told(clock, together), clock) == BatchOutcome()
    for each in told(clock, alone, first=1000):
        taken(db, [each], clock)
    first, second = rows(db, together), rows(db, alone)
    assert first == second
    job, steps = first[0]
    assert (job.step, job.total_steps, job.epoch, job.loss, job.snapshot_step) == (12, 100, 2, None, 11)
    assert job.speeds[2] == pytest.approx(12 * 10 / 50.0)
    assert [step["step"] for step in steps] == [10, 12]


def test_a_batch_of_reports_takes_a_handful_of_statements(db: Opened, clock: Clock) -> None:
    standing(db, clock)
    statements: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(db.store._engines.writer, "before_cursor_execute", note)
    taken(db, told(clock), clock)
    assert len(statements) <= 20, statements
    assert db.read(nodes.cursors) == {("node-0", "i1"): 4 * len(NAMES)}


@pytest.mark.parametrize("bad", [
    wire.Progress(1, -1, 100, steps=[{"step": 1.0}]),
    wire.Progress(1, 12, 100, step_s=-1.0),
    wire.Snapshot(1, 2**60, "memory", 1, 0.1),
], ids=["step", "heartbeat", "snapshot"])  # fmt: skip
def test_a_report_that_makes_no_sense_fails_its_own_job_only(db: Opened, clock: Clock, bad: wire.FromWorker) -> None:
    standing(db, clock)
    batch = told(clock)
    batch[6] = replace(batch[6], body=bad)
    with capture_logs():
        found = taken(db, batch, clock)
    assert (found.touched, found.refused) == ({batch[6].job}, {6})
    phases = {name: job.phase for name in NAMES if (job := db.read(jobs.get, name)) is not None}
    assert phases.pop(batch[6].job) is JobPhase.STOPPING
    assert set(phases.values()) == {JobPhase.RUNNING}
    assert all(job.step == 12 for job, _ in rows(db, [name for name in NAMES if name != batch[6].job]))


def test_a_job_whose_rows_cannot_be_read_does_not_keep_the_reports_of_others_from_being_stored(
    db: Opened, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing(db, clock)
    get, current = generations.get, generations.live_by_job

    def unless_seven(real: Callable[..., Any]) -> Callable[..., Any]:
        def read(connection: Connection, jobs: Any, *more: Any) -> Any:
            if "job-007" in ([jobs] if isinstance(jobs, str) else jobs):
                raise ValueError("unreadable")
            return real(connection, jobs, *more)

        return read

    monkeypatch.setattr(generations, "get", unless_seven(get))
    monkeypatch.setattr(generations, "live_by_job", unless_seven(current))
    with capture_logs():
        found = taken(db, told(clock), clock)
    assert found.touched == {"job-007"}
    monkeypatch.undo()
    assert all(job.step == 12 for job, _ in rows(db, [name for name in NAMES if name != "job-007"]))


def test_the_first_step_of_a_generation_is_noted_and_closes_a_recovery_in_a_batch_as_well(
    db: Opened, clock: Clock
) -> None:
    standing(db, clock, NAMES[:2])

    def broke(connection: Connection) -> None:
        generations.update(connection, NAMES[0], 1, broken_s=clock() - 40.0, ended_s=clock() - 39.0)
        newer = made.generation(("w0", "node-0"), job=NAMES[0], number=2, created_s=clock() - 39.0, first_step=None)
        generations.insert(connection, newer)

    db.write(broke)
    fresh = wire.Progress(2, 6, 100, steps=[{"step": 6.0, "time_s": clock() - 30.0}])
    batch = [*told(clock, NAMES[1:2]), WorkerEvent("node-0", "i1", 50, clock() - 30.0, NAMES[0], "w0", fresh)]
    taken(db, batch, clock)
    again = db.read(generations.get, NAMES[0], 2)
    assert again is not None and again.first_step == 6
    job = db.read(jobs.get, NAMES[0])
    assert job is not None and (job.recoveries, job.recovery_s) == (1, pytest.approx(10.0))
    assert [each.kind for each in db.read(events.after, 0, 10)] == ["job-recovered"]


def heard(body: wire.FromWorker | wire.Exited, sequence: int = 1) -> WorkerEvent:
    return WorkerEvent("node-0", "i1", sequence, 100.0, "job-000", "w0", body)


@pytest.mark.parametrize(
    ("body", "little"),
    [
        (wire.Ready(), True),
        (wire.Ready(batch_size=1), False),
        (wire.Ready(resumable_step=3), False),
        (wire.Joined(1, 0), True),
        (wire.Joined(1, 0, resumed=True), False),
        (wire.Joined(1, 5), False),
        (wire.Joined(2**60, 0), False),
        (wire.Finished(1, 0), False),
        (wire.Exited(0), False),
    ],
)
def test_only_words_that_any_job_may_say_at_any_time_are_taken_in_without_a_look(body: Any, little: bool) -> None:
    assert needs_no_store(heard(body)) is little


def test_the_words_of_a_command_that_ends_well_change_no_row_and_ask_for_no_round(db: Opened, clock: Clock) -> None:
    standing(db, clock, NAMES[:1])
    db.write(lambda connection: jobs.update(connection, NAMES[0], training=False))
    before = db.read(jobs.get, NAMES[0])
    words = [heard(wire.Joined(1, 3), 1), heard(wire.Finished(1, 0), 2), heard(wire.Exited(0), 3)]
    found = taken(db, words, clock)
    assert db.read(jobs.get, NAMES[0]) == before
    assert found.touched == {NAMES[0]} and not found.refused and not found.asks_for_round
    assert db.read(nodes.cursors) == {("node-0", "i1"): 3}


def test_a_worker_that_says_why_it_fails_is_judged_by_what_was_stored_just_before(db: Opened, clock: Clock) -> None:
    standing(db, clock, NAMES[:1])
    words = [heard(wire.Raised("no such file", permanent=True), 1), heard(wire.Raised("later", permanent=True), 2)]
    found = taken(db, words, clock)
    job = db.read(jobs.get, NAMES[0])
    assert job is not None and job.phase is JobPhase.STOPPING and job.message is not None
    assert "no such file" in job.message and found.asks_for_round
