"""What a gang that comes up is told, what is tried again and when, and whose jobs a round wakes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fairlead import wire
from fairlead.agent.protocol import LaunchOrder, NotStarted
from fairlead.cluster import DEVICE, Gang, Node
from fairlead.control.reconcile.gang_executor import FAILED_START_PAUSE_S
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.round_store import apply_round, read_state
from fairlead.control.reconcile.seats import seat_gangs
from fairlead.control.records import JobPhase
from fairlead.control.store import generations, jobs
from fairlead.scheduling.decide import decide
from fairlead.scheduling.state import Preempt, Reason

from .puppets import Body, Hurried, Platform, Says, honest, quick_loop
from .stores import Clock, Opened, a_job, run, submit

NODES = {f"n{at}": Node(f"n{at}", {"cpu": 4.0, "memory": 8e9, DEVICE: 2.0}) for at in range(2)}


@pytest.fixture
def url(new_sqlite: Path, tmp_path: Path) -> str:
    shutil.copy(new_sqlite, tmp_path / "fairlead.db")
    return f"sqlite:///{tmp_path}/fairlead.db"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with quick_loop(monkeypatch):
        yield


def listening(clock: Hurried, joins: list[wire.Join]) -> Says:
    usual = honest(clock)

    def says(told: wire.ToWorker | None) -> Sequence[Body]:
        if isinstance(told, wire.Join):
            joins.append(told)
        return usual(told)

    return says


@pytest.mark.parametrize(
    ("known", "document", "silence_s"),
    [
        ({}, {}, 30.0), ({"batch_size": 10, "samples_per_s": 10.0}, {}, 30.0),
        ({"batch_size": 10, "samples_per_s": 1.0}, {}, 100.0),  # ten of its usual steps
        ({"batch_size": 10, "samples_per_s": 1.0}, {"silence_timeout": 7.0}, 7.0),
    ],
)  # fmt: skip
def test_a_gang_is_called_silent_after_ten_usual_steps_or_as_its_spec_says(
    known: dict[str, Any], document: dict[str, Any], silence_s: float, db: Opened, quick: None
) -> None:
    clock = Hurried()
    joins: list[wire.Join] = []

    async def play() -> None:
        async with Platform(db.store, clock) as platform:
            job = a_job("slow", id="slow", submitted_s=clock(), max_workers=1, **known)
            await platform.ended(await platform.submit(job, listening(clock, joins), document))

    run(play())
    assert [join.silence_s for join in joins] == [pytest.approx(silence_s)]


def test_a_gang_that_could_not_be_started_is_not_tried_again_at_once(db: Opened, quick: None) -> None:
    clock = Hurried()
    asked_s: list[float] = []

    async def play() -> None:
        platform = Platform(db.store, clock)
        really = platform.backend.start

        async def start(gang: Gang, order: LaunchOrder, within_s: float) -> NotStarted | None:
            asked_s.append(clock())
            refused = NotStarted(gang.job, gang.generation, "busy")
            return refused if len(asked_s) < 3 else await really(gang, order, within_s)

        platform.backend.start = start  # type: ignore[method-assign]
        async with platform:
            await platform.ended(await platform.submit(a_job("a", id="a", submitted_s=clock(), max_workers=1)))

    run(play())
    assert len(asked_s) == 3
    pauses = [later - sooner for sooner, later in pairwise(asked_s)]
    assert min(pauses) >= FAILED_START_PAUSE_S


# ---------------------------------------------------------------- rounds as they are stored


def round_of(db: Opened, clock: Clock) -> Any:
    return run(read_state(db.store, clock(), NODES, GangRegistry({}, {}, {}), frozenset()))


def stored(db: Opened, state: Any, decided: Any, failed: dict[str, Exception] | None = None) -> set[str]:
    return db.write(apply_round, state, decided, seat_gangs(state, decided, failed), failed=failed)


def test_a_round_wakes_the_jobs_whose_decision_was_stored_and_no_others(db: Opened, clock: Clock) -> None:
    for name in ("a", "b"):
        submit(db, a_job(name, id=name, min_workers=2, max_workers=2))
    submit(db, a_job("c", id="c", min_workers=2, max_workers=2))
    state = round_of(db, clock)
    decided = decide(state.cluster)
    changed = stored(db, state, decided)
    starting = {job.id for job in db.read(jobs.active) if job.phase is JobPhase.STARTING}
    assert changed == starting and len(changed) == 2
    seated = {job: len(live[0].members) for job, live in db.read(generations.live_by_job, changed).items()}
    assert seated == dict.fromkeys(changed, 2)
    assert stored(db, state, decided) == set(), "what has changed since is left alone"


def test_a_job_that_was_cancelled_meanwhile_is_not_started(db: Opened, clock: Clock) -> None:
    submit(db, a_job("a", id="a"))
    state = round_of(db, clock)
    db.write(jobs.update, "a", phase=JobPhase.CANCELLED, finished_s=1.0)
    assert stored(db, state, decide(state.cluster)) == set()
    assert db.read(generations.live_by_job, {"a"}).get("a", []) == []


def test_who_is_cooling_off_waits_and_is_looked_at_when_that_is_over(db: Opened, clock: Clock) -> None:
    submit(db, a_job("a", id="a"))
    known = GangRegistry({}, {}, {})
    known.cooling_until_s["a"] = clock() + FAILED_START_PAUSE_S
    assert run(read_state(db.store, clock(), NODES, known, frozenset())).cluster.jobs == ()
    after = run(read_state(db.store, clock() + FAILED_START_PAUSE_S, NODES, known, frozenset()))
    assert [job.id for job in after.cluster.jobs] == ["a"]


@pytest.mark.parametrize(
    ("phase", "others", "stops"),
    [(JobPhase.RUNNING, JobPhase.QUEUED, True), (JobPhase.STARTING, JobPhase.QUEUED, True),
     (JobPhase.RUNNING, JobPhase.STOPPING, True), (JobPhase.QUEUED, JobPhase.QUEUED, False)],
)  # fmt: skip
def test_a_preempted_job_stops_whatever_else_is_on_its_way_out(
    phase: JobPhase, others: JobPhase, stops: bool, db: Opened, clock: Clock
) -> None:
    submit(db, a_job("a", id="a", phase=phase))
    submit(db, a_job("b", id="b", phase=others, then=JobPhase.CANCELLED if others is JobPhase.STOPPING else None))
    state = round_of(db, clock)
    decided = replace(decide(state.cluster), decisions=(Preempt("a", Reason("share", "for others")),))
    assert stored(db, state, decided) == ({"a"} if stops else set())
    job = db.read(jobs.get, "a")
    became = (JobPhase.STOPPING, JobPhase.QUEUED) if stops else (phase, None)
    assert job is not None and (job.phase, job.then) == became


def test_a_decision_that_cannot_be_stored_fails_its_job_and_no_other(
    db: Opened, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        submit(db, a_job(name, id=name, max_workers=1))
    state = round_of(db, clock)
    really = generations.insert

    def insert(connection: Any, generation: Any) -> None:
        really(connection, generation)
        if generation.job == "a":
            raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(generations, "insert", insert)
    failed: dict[str, Exception] = {}
    assert stored(db, state, decide(state.cluster), failed) == {"b"}
    assert set(failed) == {"a"} and set(db.read(generations.live_by_job, {"a", "b"})) == {"b"}
    with pytest.raises(ZeroDivisionError):
        stored(db, round_of(db, clock), decide(round_of(db, clock).cluster))
