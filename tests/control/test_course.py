"""What people and failures decide about a job stands, whatever the control plane was about to do with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from sqlalchemy import Connection

from fairlead.agent.protocol import Backend, NotStarted
from fairlead.control.reconcile import gang_state_machine
from fairlead.control.reconcile.gang_executor import FAILED_START_PAUSE_S, GangExecutor
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import GangView, WorkerFact
from fairlead.control.reconcile.worker_events import stop_changes
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase
from fairlead.control.store import generations, jobs, ledger
from fairlead.errors import Unavailable
from tests.control import made
from tests.control.stores import Clock, Opened, run

JOB = "mlp-abc234"


def stored(db: Opened, job: Job, generation: Generation) -> GangView:
    def work(connection: Connection) -> None:
        jobs.insert(connection, job, {}, {}, None, "digest")
        generations.insert(connection, generation)

    db.write(work)
    return GangView(job, [generation], {}, frozenset(), 0.0, frozenset())


def carry_out(db: Opened, clock: Clock, backend: object = None, known: GangRegistry | None = None) -> GangExecutor:
    return GangExecutor(
        db.store, cast(Backend, backend), known or GangRegistry({}, {}, {}), made.worker_order, dict, clock
    )


def now(db: Opened) -> Job:
    found = db.read(lambda connection: jobs.get(connection, JOB))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("before", "action"),
    [
        ({"phase": JobPhase.STARTING}, lambda g: gang_state_machine.MarkRunning(g)),
        ({"phase": JobPhase.RUNNING}, lambda g: gang_state_machine.BeginStop(JobPhase.QUEUED, "worker-lost")),
        ({"phase": JobPhase.RUNNING, "failures": 9}, lambda g: gang_state_machine.MarkBroken(g, ("w0",))),
        ({"phase": JobPhase.STOPPING, "then": JobPhase.QUEUED, "outcome": "preempted"},
         lambda g: gang_state_machine.Conclude(JobPhase.QUEUED, "preempted")),
    ],
)  # fmt: skip
def test_a_cancel_that_comes_between_the_look_and_the_deed_stands(
    db: Opened, clock: Clock, before: dict[str, Any], action: Any
) -> None:
    generation = made.generation(("w0", "node-0"), phase=GenerationPhase.JOINING)
    view = stored(db, made.job(**before), generation)
    db.write(lambda c: jobs.update(c, JOB, **stop_changes(JobPhase.CANCELLED, "cancelled", "by tok", 150.0)))
    run(carry_out(db, clock).execute(action(generation), view))
    assert (now(db).phase, now(db).then) == (JobPhase.STOPPING, JobPhase.CANCELLED)


@pytest.mark.parametrize(
    ("before", "meanwhile", "action", "after"),
    [
        ({"phase": JobPhase.STOPPING, "then": JobPhase.QUEUED, "outcome": "preempted", "preemptions": 1},
         {"preemptions": 2}, lambda g: gang_state_machine.Conclude(JobPhase.QUEUED, "preempted"), {"preemptions": 3}),
        ({"phase": JobPhase.STARTING}, {"started_s": 120.0}, lambda g: gang_state_machine.MarkRunning(g),
         {"started_s": 120.0}),
    ],
    ids=["preemptions", "started"],
)  # fmt: skip
def test_what_is_counted_goes_on_from_what_is_stored_and_not_from_what_was_seen(
    db: Opened, clock: Clock, before: dict[str, Any], meanwhile: dict[str, Any], action: Any, after: dict[str, Any]
) -> None:
    generation = made.generation(("w0", "node-0"))
    view = stored(db, made.job(**before), generation)
    db.write(lambda connection: jobs.update(connection, JOB, **meanwhile))
    run(carry_out(db, clock).execute(action(generation), view))
    assert {name: getattr(now(db), name) for name in after} == after


class CutLine:
    """A backend whose line to the node is cut at the moment of the command."""

    async def start(self, *arguments: object) -> None:
        raise Unavailable("the line is cut")

    tell = stop = release = start


@pytest.mark.parametrize(
    "action",
    [
        lambda g: gang_state_machine.Start(g),
        lambda g: gang_state_machine.TellLeave(g, (), snapshot=False),
        lambda g: gang_state_machine.StopWorkers(("w0",), 0.0),
    ],
)
def test_a_command_that_did_not_arrive_is_given_again(db: Opened, clock: Clock, action: Any) -> None:
    known = GangRegistry({JOB: {"w0": WorkerFact("node-0", "asked")}}, {}, {})
    generation = made.generation(("w0", "node-0"), phase=GenerationPhase.PLANNED)
    view = stored(db, made.job(phase=JobPhase.STARTING), generation)
    with pytest.raises(Unavailable):
        run(carry_out(db, clock, CutLine(), known).execute(action(generation), view))
    assert known.commands_sent.get(JOB, set()) == set()
    assert known.workers_of(JOB)["w0"].phase == "asked"


class FullHouse:
    """A backend in which one node has no room, and another has started its part."""

    def __init__(self) -> None:
        self.released: dict[str, str] = {}

    async def start(self, *arguments: object) -> NotStarted:
        return NotStarted(JOB, 1, "node-1: device 0 is taken", "node-1")

    async def release(self, job: str, workers: dict[str, str]) -> None:
        self.released |= workers


def test_a_gang_of_which_a_part_was_refused_leaves_no_device_behind(db: Opened, clock: Clock) -> None:
    known = GangRegistry({}, {}, {})
    generation = made.generation(("w0", "node-0"), ("w1", "node-1"), phase=GenerationPhase.PLANNED)
    view = stored(db, made.job(phase=JobPhase.STARTING), generation)
    backend = FullHouse()
    run(carry_out(db, clock, backend, known).execute(gang_state_machine.Start(generation), view))
    assert backend.released == {"w0": "node-0", "w1": "node-1"} and known.workers_of(JOB) == {}
    assert (now(db).phase, now(db).then) == (JobPhase.STOPPING, JobPhase.QUEUED)
    assert known.cooling_until_s[JOB] == clock() + FAILED_START_PAUSE_S, "it is not tried again at once"


@pytest.mark.parametrize(("outcome", "until_s"), [("finished", 150.0), ("cancelled", 160.0)])
def test_devices_are_charged_until_they_are_the_next_ones(
    db: Opened, clock: Clock, outcome: str, until_s: float
) -> None:
    """Those of a job that finished are given to others at once, and nobody pays for the same device twice."""
    clock.now_s = 160.0
    then = JobPhase.SUCCEEDED if outcome == "finished" else JobPhase.CANCELLED
    stopping = made.job(phase=JobPhase.STOPPING, then=then, outcome=outcome, since_s=150.0)
    view = stored(db, stopping, made.generation(("w0", "node-0")))
    run(carry_out(db, clock).execute(gang_state_machine.Conclude(then, outcome), view))
    assert [line.to_s for line in db.read(ledger.lines_between, 0.0, 1e9) if line.job == JOB] == [until_s]


class Deaf:
    """A backend that takes every order."""

    async def start(self, *arguments: object) -> None:
        return None


def test_one_that_is_started_anew_is_called_anew(db: Opened, clock: Clock) -> None:
    known = GangRegistry({JOB: {"w0": WorkerFact("node-0", "asked")}}, {JOB: {"join:1"}}, {})
    generation = made.generation(("w0", "node-0"), phase=GenerationPhase.JOINING)
    view = stored(db, made.job(phase=JobPhase.STARTING, max_workers=1), generation)
    run(carry_out(db, clock, Deaf(), known).execute(gang_state_machine.Start(generation), view))
    assert known.commands_sent[JOB] == set()


@pytest.mark.parametrize(("outcome", "cools"), [("preempted", False), ("worker-lost", False), ("abandoned", True)])
def test_only_a_failed_reservation_keeps_a_queued_job_waiting(
    db: Opened, clock: Clock, outcome: str, cools: bool
) -> None:
    stopping = made.job(phase=JobPhase.STOPPING, then=JobPhase.QUEUED, outcome=outcome, since_s=150.0)
    view = stored(db, stopping, made.generation(("w0", "node-0")))
    known = GangRegistry({}, {}, {JOB: 900.0})
    run(carry_out(db, clock, known=known).execute(gang_state_machine.Conclude(JobPhase.QUEUED, outcome), view))
    assert (JOB in known.cooling_until_s) is cools


def test_a_back_off_is_known_again_after_a_restart() -> None:
    known = GangRegistry({}, {}, {})
    over = made.job(id="over", back_off_until_s=90.0)
    of_tomorrow = made.job(id="tomorrow", back_off_until_s=9e4)  # by a clock that was set back since
    known.restore_back_offs([made.job(back_off_until_s=140.0), over, of_tomorrow], 100.0)
    assert known.cooling_until_s == {JOB: 140.0}


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        (lambda g, former: gang_state_machine.BeginJoin(g, former), "it joins"),
        (lambda g, former: gang_state_machine.Abandon(g, "a node has no room"), "it is given up"),
        (lambda g, former: gang_state_machine.Conclude(JobPhase.CANCELLED, "cancelled"), "the job ends meanwhile"),
    ],
    ids=["joins", "abandoned", "cancelled"],
)
def test_newcomers_are_charged_since_they_were_planned(db: Opened, clock: Clock, action: Any, outcome: str) -> None:
    """They hold their devices while they come up beside the former generation."""
    cancelled = outcome == "the job ends meanwhile"
    phase = {"phase": JobPhase.STOPPING, "then": JobPhase.CANCELLED, "outcome": "cancelled"} if cancelled else {}
    former = made.generation(("w0", "node-0"), metered_s=140.0)
    newest = made.generation(("w0", "node-0"), ("w1", "node-1"), number=2, phase=GenerationPhase.PLANNED,
                             created_s=145.0, metered_s=None, running_s=None)  # fmt: skip
    clock.now_s = 150.0
    view = stored(db, made.job(generation=2, **phase), former)
    db.write(generations.insert, newest)
    run(carry_out(db, clock).execute(action(newest, former), replace(view, generations=[former, newest])))
    booked = {
        (line.generation, line.node): (line.from_s, line.to_s) for line in db.read(ledger.lines_between, 0.0, 1e9)
    }
    assert booked.pop((2, "node-1")) == (145.0, 150.0)
    assert booked == ({} if outcome == "it is given up" else {(1, "node-0"): (140.0, 150.0)})
